"""The options that every command takes, wherever they stand: ``--plugin``, ``--quiet``, ``--json``, ``--progress``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from incseg.errors import InputError

FLAGS = ("--quiet", "--json")
VALUED = {
    "--plugin": "a Python file that registers methods or datasets",
    "--progress": "json, for one JSON object per line on stderr",
}


@dataclass(frozen=True)
class Everywhere:
    """What was asked of any command."""

    plugins: tuple[Path, ...] = ()
    quiet: bool = False
    json: bool = False
    progress: bool = False
    """Progress and messages as JSON lines."""


def take_everywhere(words: Sequence[str]) -> tuple[Everywhere, list[str]]:
    """These options, and the other words."""
    flags = {flag for flag in FLAGS if flag in words}
    values: dict[str, list[str]] = {option: [] for option in VALUED}
    rest: list[str] = []
    waiting = [word for word in words if word not in FLAGS]
    while waiting:
        word = waiting.pop(0)
        option, equals, value = word.partition("=")
        if option not in VALUED:
            rest.append(word)
            continue
        if not equals:
            value = waiting.pop(0) if waiting and not waiting[0].startswith("--") else ""
        if not value:
            raise InputError(f"{option} needs a value: {VALUED[option]}.")
        values[option].append(value)
    if set(values["--progress"]) - {"json"}:
        raise InputError(f"--progress cannot be '{values['--progress'][-1]}': it takes {VALUED['--progress']}.")
    plugins = tuple(map(Path, values["--plugin"]))
    return Everywhere(plugins, "--quiet" in flags, "--json" in flags, bool(values["--progress"])), rest
