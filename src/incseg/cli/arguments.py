"""From the words of a command line to the arguments of a command.

tyro parses them. The settings, written ``--SECTION.NAME VALUE``, are not listed here: their names, types, defaults and
help come from the sections of ``incseg.config`` and from the signatures of the registered methods.
"""

import contextlib
import inspect
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_origin

import tyro
from pydantic.fields import FieldInfo

from incseg.config import (
    RunConfig,
    Section,
    as_text,
    is_plain_number,
    load_recipe,
    names_in,
    read_setting,
    section_types,
)
from incseg.errors import InputError, closest
from incseg.without_torch import without_torch

Command = TypeVar("Command", bound=Callable[..., None])
Sections = Mapping[str, Section]
"""Settings by the name of their section; the values are the defaults that help shows."""
OptionalFolder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME...", help_behavior_hint="")]
OptionalStep = Annotated[int | None, tyro.conf.arg(metavar="K", help_behavior_hint="(default: the last)")]
ModelPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
DEFAULT = RunConfig(protocol="")
METAVARS = {bool: "{true,false}", int: "INT", float: "FLOAT", Path: "PATH", NoneType: "none"}


def takes_settings(*shown: str) -> Callable[[Command], Command]:
    """Mark a command with a parameter ``settings``; its help shows the settings that begin with one of ``shown``."""

    def mark(command: Command) -> Command:
        command.__dict__["settings_shown"] = shown
        return command

    return mark


def settings_shown(command: object) -> tuple[str, ...]:
    """How the settings begin that a command's help shows; empty if it takes no settings."""
    return getattr(command, "settings_shown", ())


def is_setting(word: str) -> bool:
    """Whether a word names a setting: ``--optim.epochs`` or ``--optim.epochs=3``."""
    return word.startswith("--") and "." in word.partition("=")[0]


def _owners(words: Sequence[str]) -> set[str]:
    """The sections whose settings are among the words, hyphened."""
    return {_hyphened(word.removeprefix("--").partition(".")[0]) for word in words if is_setting(word)}


def _hyphened(name: str) -> str:
    """A name as help shows it: - and _ are the same to whoever writes it."""
    return name.replace("_", "-")


def read_arguments(command: Callable[..., None], words: Sequence[str], program: str) -> dict[str, Any]:
    """What to call a command with; of the settings only those that were written, so that a recipe's others stand."""
    sections = _run_sections(DEFAULT) if settings_shown(command) else {}
    if sections and not _owners(words) <= set(sections):  # of methods, which import PyTorch
        return without_torch(lambda: _read(command, words, program, {**_method_sections(), **sections}))
    return _read(command, words, program, sections)


def _read(command: Callable[..., None], words: Sequence[str], program: str, sections: Sections) -> dict[str, Any]:
    _check_options(command, words, _names(sections))
    owners = _owners(words)
    written = {owner: section for owner, section in sections.items() if _hyphened(owner) in owners}
    arguments = _parse(_collector(command, written), words, program)  # tyro takes its time for every section
    if sections:
        arguments["settings"] = {owner: values for owner, values in arguments.get("settings", {}).items() if values}
    return arguments


def show_help(command: Callable[..., None], words: Sequence[str], program: str) -> None:
    """Print a command's help, with the defaults of the recipe and the settings of the method among its words."""
    if not settings_shown(command):
        _parse(_collector(command, {}), ["--help"], program)
        return
    given: dict[str, Any] = {"method": dict(itertools.pairwise(words)).get("--method")}
    config = RunConfig(protocol="", method=given["method"] or DEFAULT.method)
    with contextlib.suppress(InputError):  # help is often asked for before everything is there, or right
        given = read_arguments(command, words, program)
        asked = {"method": given["method"]} if given.get("method") else {}
        config = load_recipe(given["recipe"], asked) if "recipe" in given else config
    sections = _run_sections(config)
    knows_method = "method" in given and (given["method"] or config.protocol)
    chosen = _method_sections(config) if knows_method else {}
    shown = (*settings_shown(command), *(f"{name}." for name in chosen))
    _parse(_collector(command, {**sections, **chosen}, shown), ["--help"], program)


def _run_sections(config: RunConfig) -> dict[str, Section]:
    return {name: getattr(config, name) for name in section_types()}


def _method_sections(config: RunConfig | None = None) -> dict[str, Section]:
    """A section for each method that has settings, as its signature declares them; of a config, for its own methods."""
    from incseg.methods import describe_methods

    sections: dict[str, Section] = {}
    for entry in describe_methods():
        if entry.settings and (config is None or entry.name in names_in(config.method)):
            given = config.settings.get(entry.name, {}) if config else {}
            sections[entry.name] = entry.section.model_construct(**given)
    return sections


def _declared(sections: Sections) -> Iterator[tuple[str, str, FieldInfo]]:
    """Section, name and declaration of all settings."""
    for owner, section in sections.items():
        for key, field in type(section).model_fields.items():
            yield owner, key, field


def _names(sections: Sections) -> list[str]:
    return [f"{owner}.{key}" for owner, key, _ in _declared(sections)]


def _check_options(command: Callable[..., None], words: Sequence[str], names: Sequence[str]) -> None:
    """Refuse options that do not exist, and settings without a value; tyro finds whatever else is wrong."""
    declared = inspect.signature(command).parameters.items()
    parameters = {_hyphened(f"--{name}".rstrip("_")): p for name, p in declared}  # from_: a word of Python's
    parameters.pop("--settings", None)
    settings = [_hyphened(f"--{name}") for name in names]
    single = {*settings, *(option for option, parameter in parameters.items() if _takes_one_value(parameter))}
    for word, following in itertools.pairwise([*words, "--"]):
        name, equals, value = word.partition("=")
        option = _hyphened(name)
        if name.startswith("--") and len(name) > 2 and option not in (*parameters, *settings):
            raise _unknown(option, [*parameters, *settings])
        if option in single and name.startswith("--") and not (value if equals else _value_in(following)):
            raise InputError(f"{option} needs a value.")


def _takes_one_value(parameter: inspect.Parameter) -> bool:
    """Whether an option is followed by exactly one word: not a flag, nor a list of any length."""
    return not isinstance(parameter.default, bool | tuple)


def _value_in(word: str) -> str:
    return "" if word.startswith("--") else word


def _unknown(option: str, options: Sequence[str]) -> InputError:
    """What to say of an option that does not exist."""
    name, names = option.removeprefix("--"), [known.removeprefix("--") for known in options]
    owner, dot, _ = name.partition(".")
    if not dot:
        return InputError(f"there is no option {option}.{closest(option, options)}")
    owners = list(dict.fromkeys(known.partition(".")[0] for known in names if "." in known))
    if owner not in owners:
        accepted = f"use one of {', '.join(section_types())}, or a method's name (see: incseg list methods)"
        plugin = f" If a file of yours defines the method '{owner}', add --plugin FILE."
        return InputError(
            f"'{owner}' is neither a group of settings nor a method: {accepted}.{closest(owner, owners)}{plugin}"
        )
    own = [known.partition(".")[2] for known in names if known.startswith(f"{owner}.")]
    hint = closest(name, names) or f" The settings of '{owner}' are: {', '.join(own)}."
    return InputError(f"there is no setting '{name}'.{hint}")


def _collector(
    command: Callable[..., None], sections: Sections, shown: tuple[str, ...] = ("",)
) -> Callable[..., dict[str, Any]]:
    """A function with a command's signature, its settings spelt out, that returns what tyro calls it with."""

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    declared = inspect.signature(command).parameters
    annotations = {name: _with_plain_errors(name, p.annotation) for name, p in declared.items() if name != "settings"}
    defaults = {name: declared[name].default for name in annotations}
    if sections:
        has_defaults = "recipe" in declared  # elsewhere they depend on more than the command line says
        annotations["settings"] = Annotated[_settings_type(sections, shown, has_defaults), tyro.conf.arg(name="")]
    collect.__doc__, collect.__annotations__ = command.__doc__, annotations
    collect.__dict__["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, inspect.Parameter.empty),
                annotation=annotation,
            )
            for name, annotation in annotations.items()
        ]
    )
    return collect


def _settings_type(sections: Sections, shown: tuple[str, ...], has_defaults: bool) -> Any:
    """Nested dictionaries in which tyro puts only the settings that were written."""
    types: dict[str, dict[str, Any]] = {}
    for owner, key, field in _declared(sections):
        if f"{owner}.{key}".startswith(shown):
            default = as_text(getattr(sections[owner], key)) if has_defaults else None
            types.setdefault(owner, {})[key] = _setting_type(type(sections[owner]), f"{owner}.{key}", field, default)
    return _typed_dict(
        "settings", {owner: _typed_dict(owner, keys, type(sections[owner]).__doc__) for owner, keys in types.items()}
    )


def _typed_dict(name: str, keys: Mapping[str, Any], doc: str | None = None) -> Any:
    kind: Any = TypedDict(name, dict(keys), total=False)  # type: ignore[misc]  # made at run time, not for mypy
    kind.__doc__ = doc
    return kind


def _setting_type(section: type[Section], name: str, field: FieldInfo, default: str | None) -> Any:
    """What tyro is told about a setting; pydantic reads it."""
    hint = "" if default is None else f"(default: {default})"
    return Annotated[
        object,
        _primitive(_metavar(field.annotation), partial(read_setting, section, name)),
        tyro.conf.arg(help=" ".join((field.description or "").split()), help_behavior_hint=hint),
    ]


def _with_plain_errors(name: str, annotation: Any) -> Any:
    """A command's own option as it is declared; one for a number or a choice says in plain words what it takes."""
    declared = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    option = _hyphened(f"--{name}")
    optional = get_args(declared) if NoneType in get_args(declared) else ()  # tyro would offer 'None' too
    choices = next((get_args(kind) for kind in optional if get_origin(kind) is Literal), ())

    def read_number(text: str) -> int:
        try:
            if is_plain_number(text):
                return int(text)
        except ValueError:
            pass
        raise InputError(f"{option} cannot be '{text[:40]}': it takes a whole number, written with 0 to 9.")

    def read_choice(text: str) -> str:
        if text not in choices:
            raise InputError(f"{option} cannot be '{text}': choose {' or '.join(choices)}.{closest(text, choices)}")
        return text

    if declared in (int, int | None):
        return Annotated[annotation, _primitive("INT", read_number)]
    return Annotated[annotation, _primitive(f"{{{','.join(choices)}}}", read_choice)] if choices else annotation


def _primitive(metavar: str, read: Callable[[str], Any]) -> Any:
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda value: [as_text(value)],
    )


def _metavar(annotation: Any) -> str:
    """What stands for the value in help: ``INT``, ``{ignore,background}``, ``none|PATH``, ``NAME,…``."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "{" + ",".join(map(str, inner)) + "}"
    if origin is dict:
        return "'{NAME: VALUE}'"
    if origin is tuple:
        return f"{_metavar(inner[0])},…"
    if inner and NoneType in inner:
        return "|".join(["none", *(_metavar(kind) for kind in inner if kind is not NoneType)])
    return METAVARS.get(annotation, "TEXT")


def _parse(collect: Callable[..., dict[str, Any]], words: Sequence[str], program: str) -> dict[str, Any]:
    """What tyro makes of the words; of a refusal, which it prints as a box, the sentence is kept."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(collect, prog=program, args=list(words), config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as end:
        if not end.code:
            return {}
    _, *lines = (line.strip("│|╭╮╰╯+─- ") for line in printed.getvalue().splitlines())
    inside = itertools.dropwhile(lambda line: not line, lines)
    sentence = " ".join(itertools.takewhile(bool, inside))  # below the next rule is only advice
    raise InputError(f"{' '.join(sentence.replace('(required)', '').split()).rstrip('.')}. See: {program} --help.")
