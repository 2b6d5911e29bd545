"""The command line: finds the command, calls it with what was written, and turns what went wrong into an exit code."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import tyro

import incseg
from incseg import registry
from incseg.cli import bench, data, deploy, extending, listing, records, studies, train
from incseg.cli.arguments import is_setting, read_arguments, settings_shown, show_help
from incseg.cli.everywhere import Everywhere, take_everywhere
from incseg.console import Console, as_json, for_programs, is_rank_zero, quietly
from incseg.errors import IncompleteError, InputError, LocalError, Stopped, TrainingError, closest
from incseg.files import refusal_of_the_machine

Command = Callable[..., None]


@dataclass(frozen=True)
class Group:
    """Commands that are written after the same word."""

    description: str
    commands: Mapping[str, "Command | Group"]


COMMANDS: dict[str, Command | Group] = {
    "demo": studies.demo,
    "train": train.train,
    "eval": train.evaluate,
    "report": train.report,
    "compare": studies.compare,
    "reproduce": studies.reproduce,
    "results": Group(
        "Keep the results of runs as records, and make pages from them: incseg results collect, leaderboard, page.",
        {"collect": records.collect, "leaderboard": records.leaderboard, "page": records.page},
    ),
    "extend": extending.extend,
    "memory": extending.memory,
    "statistics": extending.statistics,
    "merge": extending.merge,
    "forget": extending.forget,
    "import": deploy.import_model,
    "predict": deploy.predict,
    "export": deploy.export,
    "push": deploy.push,
    "serve": deploy.serve,
    "list": listing.show_list,
    "bench": bench.bench,
    "data": Group(
        "Get, check, convert a dataset, see the images of a step: incseg data prepare, check, convert, split.",
        {"prepare": data.prepare, "check": data.check, "convert": data.convert, "split": data.split},
    ),
}
DESCRIPTION = f"""{incseg.__doc__}

Every command also takes --plugin FILE, as often as needed: a Python file that registers methods or datasets of yours;
--quiet, to print results and warnings only; --json, to print one JSON document for a program and everything for people
on stderr; and --progress json, for progress and messages as JSON, one per line, on stderr.
'incseg COMMAND --help' explains a command, 'incseg --version' prints the version."""
RESUMABLE = ("demo", "train", "extend", "compare", "reproduce")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: 0 done, 1 failed, 2 the input was wrong, 75 asked to stop before the end (run again to resume)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options, words = take_everywhere(words)
    except InputError as error:
        Console(stderr=True).say(f"incseg: {error}")
        return 2
    with for_programs(json=options.json, lines=options.progress) as document:
        code, sentence = _outcome(words, options)
        if sentence:
            Console(stderr=True).say(f"incseg: {sentence}")
    if options.json and is_rank_zero():
        heading = {"incseg": incseg.__version__, "command": words[0] if words else "", "exit_code": code}
        print(as_json({**heading, "error": sentence, **document}))
    return code


def _outcome(words: list[str], options: Everywhere) -> tuple[int, str]:
    """Run a command; returns the exit code and what went wrong, to be said by one of several processes."""
    try:
        with _second_interrupt_ends_at_once(), quietly(options.quiet):
            _load_plugins(options.plugins, needed=words[:1] != ["list"])
            _run(Group(DESCRIPTION, COMMANDS), words, "incseg")
    except Stopped as stopped:
        return Stopped.EXIT_CODE, str(stopped) if is_rank_zero() else ""
    except (InputError, TrainingError, IncompleteError) as error:
        is_said = is_rank_zero() or isinstance(error, LocalError)  # all processes have the others, so one says them
        return 2 if isinstance(error, InputError) else 1, str(error) if is_said else ""
    except KeyboardInterrupt:
        is_resumable = bool(words) and words[0] in RESUMABLE
        hint = "; run the same command again to resume from the last checkpoint" if is_resumable else ""
        return 1, f"interrupted{hint}."
    except BrokenPipeError:  # nobody reads on, as in "incseg train --help | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        return 1, ""
    except OSError as error:  # the machine says no: a full disk, a quota, a folder that cannot be read or written
        return 1, refusal_of_the_machine(error)
    return 0, ""


@contextmanager
def _second_interrupt_ends_at_once() -> Iterator[None]:
    """After one Ctrl-C things are put in order; a second one does not wait for that, and shows no traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not _is_main_thread():
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(1))
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is first:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _run(group: Group, words: Sequence[str], program: str) -> None:
    """Call the command that the first word names with the arguments that follow it."""
    name = words[0] if words else "--help"
    if name in ("--help", "-h"):
        _show_commands(group, program)
    elif name == "--version":
        print(incseg.__version__)
    elif name not in group.commands:
        names = ", ".join(group.commands)
        raise InputError(f"there is no command '{program} {name}': use one of {names}.{closest(name, group.commands)}")
    elif isinstance(command := group.commands[name], Group):
        _run(command, words[1:], f"{program} {name}")
    else:
        _call(group, name, command, words[1:], program)


def _call(group: Group, name: str, command: Command, words: Sequence[str], program: str) -> None:
    """Call a command with what was written, or show its help."""
    asked = [word for word in words if word not in ("--help", "-h")]
    if len(asked) < len(words):
        show_help(command, asked, f"{program} {name}")
        return
    settings = [word.partition("=")[0] for word in words if is_setting(word)]
    if settings and not settings_shown(command):
        takers = ", ".join(f"'{program} {key}'" for key, other in group.commands.items() if settings_shown(other))
        raise InputError(f"settings such as {settings[0]} are taken only by {takers}.")
    command(**read_arguments(command, words, f"{program} {name}"))


def _show_commands(group: Group, program: str) -> None:
    """One line for each command."""

    def only_described(command: Command | Group) -> Command:
        def nothing() -> None: ...

        text = command.description if isinstance(command, Group) else command.__doc__ or ""
        nothing.__doc__ = text.split("\n", 1)[0]
        return nothing

    listed = {name: only_described(command) for name, command in group.commands.items()}
    try:
        tyro.extras.subcommand_cli_from_dict(listed, prog=program, description=group.description, args=["--help"])
    except SystemExit:  # how tyro ends --help; main decides the exit code
        return


def _load_plugins(files: Sequence[Path], *, needed: bool) -> None:
    """Load plugins; a broken one that is not needed is only named."""
    for file in files:
        try:
            registry.load_plugin(file)
        except InputError as error:
            if needed:
                raise
            Console(stderr=True).say(f"{error} It is left out.")
