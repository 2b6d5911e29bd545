"""From names to methods: the decorator that registers one, and ``parse("mib+ucd")``."""

import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, ParamSpec, get_type_hints

from pydantic import create_model, validate_call

from incseg import registry
from incseg.config import HeadKind, RunConfig, Section, read_section, refuse_twice, section_types, split_sum
from incseg.errors import InputError, closest
from incseg.methods.method import Method, MethodSum
from incseg.methods.part import Part, remembers, replays
from incseg.registry import Registry

Settings = Mapping[str, Mapping[str, Any]]
Arguments = ParamSpec("Arguments")
NAME = re.compile(r"[\w-]+\+?")  # a plus inside would make it a sum, a dot a setting


@dataclass(frozen=True)
class MethodEntry:
    """A registered method and what a person should know before choosing it."""

    name: str
    summary: str
    paper: str
    build: Callable[..., MethodSum]
    alone: bool
    needs: tuple[str, ...]
    """What it uses besides the data of the step."""

    @cached_property
    def section(self) -> type[Section]:
        """The settings as a section like those of a run, so that they are read by the same rules."""
        types = get_type_hints(self.build, include_extras=True)
        fields: dict[str, Any] = {key: (types.get(key, Any), default) for key, default in self.settings.items()}
        with warnings.catch_warnings(action="ignore"):  # a setting may be called like something of pydantic's
            return create_model(self.name, __base__=Section, __doc__=self.summary, **fields)

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings with their defaults."""
        return {name: p.default for name, p in inspect.signature(self.build).parameters.items()}


METHODS: Registry[MethodEntry] = Registry("method", registry.METHODS, ", or sums of them such as mib+ucd")


def register_method(
    name: str, summary: str, *, paper: str, alone: bool = False
) -> Callable[[Callable[Arguments, Sequence[Part]]], Callable[Arguments, MethodSum]]:
    """Register a function that lists a method's parts; its keyword arguments become the method's settings.

    Args:
        name: how it is written in ``--method``.
        summary: one line for ``incseg list methods``.
        paper: the publication it comes from.
        alone: it cannot be summed with another.
    """

    def register(list_parts: Callable[Arguments, Sequence[Part]]) -> Callable[Arguments, MethodSum]:
        if not NAME.fullmatch(name) or name in RunConfig.model_fields:
            raise InputError(
                f"a method cannot be called '{name}': use letters, digits, - and _, and no name of a setting such as "
                f"{', '.join(section_types())}."
            )
        for setting, parameter in inspect.signature(list_parts).parameters.items():
            if setting.startswith(("_", "model_")):  # as in pydantic, which reads them
                raise InputError(f"the setting '{setting}' of the method '{name}' may not begin with _ or model_.")
            if parameter.default is inspect.Parameter.empty:
                raise InputError(f"the setting '{setting}' of the method '{name}' needs a default value.")
        checked = validate_call(list_parts)

        @wraps(list_parts)
        def build(*args: Arguments.args, **kwargs: Arguments.kwargs) -> MethodSum:
            parts = tuple(checked(*args, **kwargs))
            for part in parts:
                part.origin = name
            return MethodSum(name, parts)

        needs = _needs(list_parts())  # type: ignore[call-arg]  # all settings have defaults, as checked above
        METHODS.add(MethodEntry(name, summary, paper, build, alone, needs), list_parts)
        return build

    return register


def _needs(parts: Sequence[Part]) -> tuple[str, ...]:
    needed = {
        "teacher": any(part.needs_teacher for part in parts),
        "memory": any(remembers(part) for part in parts),
        "replay images": any(replays(part) for part in parts),
        "old data": any(part.keeps_data for part in parts),
    }
    return tuple(name for name, is_needed in needed.items() if is_needed)


def describe_methods() -> list[MethodEntry]:
    """Every registered method, by name."""
    return METHODS.all()


def method_names() -> list[str]:
    """The names that can be used in a sum."""
    return METHODS.names()


def parse(text: str, settings: Settings | None = None) -> Method:
    """Read a sum such as ``"mib+ucd"``, with settings by method name: ``{"ucd": {"temperature": 0.1}}``.

    Examples:
        >>> [type(part).__name__ for part in parse("mib+ucd").parts]
        ['UnbiasedCrossEntropy', 'UnbiasedDistillation', 'BalancedInitialisation', 'ContrastiveDistillation']
    """
    settings = settings or {}
    entries = [METHODS.find(name, text) for name in summands(text)]
    names = [entry.name for entry in entries]
    _check_sum(entries)
    for name in settings:
        if name not in names:
            raise InputError(f"there are settings for '{name}', which is not part of the method '{text}'.")
    total = _build(entries[0], settings)
    for entry in entries[1:]:
        total = total + _build(entry, settings)
    return total.resolve()


def require_head(method: Method, head: HeadKind) -> None:
    """Refuse a method with a part that does not work with this kind of head, and name the methods that do."""
    for part in method.parts:
        if head not in part.heads:
            working = [entry.name for entry in METHODS.all() if _works_with(entry.build().parts, head)]
            raise InputError(
                f"'{part.origin}' needs a {' or '.join(part.heads)} head, and this network has a {head} head "
                f"(model.head): with it, use {', '.join(working)}, or sums of these."
            )


def _works_with(parts: Sequence[Part], head: HeadKind) -> bool:
    return all(head in part.heads for part in parts)


def summands(text: str) -> list[str]:
    """The names in a sum. A name may itself end in a plus: ``"ilt++ucd"`` is ilt+ and ucd.

    >>> summands("mib + ucd"), summands("ilt+"), summands("ilt++ucd")
    (['mib', 'ucd'], ['ilt+'], ['ilt+', 'ucd'])
    """
    return split_sum(text, METHODS.names())


def _check_sum(entries: Sequence[MethodEntry]) -> None:
    names = [entry.name for entry in entries]
    for index, entry in enumerate(entries):
        if entry.alone and len(entries) > 1:
            other = names[1 - index] if index < 2 else names[0]
            raise InputError(f"'{entry.name}' stands alone: it cannot be summed with '{other}'.")
    refuse_twice(names)


def default_settings(text: str) -> dict[str, Any]:
    """What every setting of a method is where nothing is said of it, named as in results.

    Examples:
        >>> default_settings("mib+ucd")["settings.ucd.temperature"]
        0.07
    """
    entries = [METHODS.find(name, text) for name in summands(text)]
    return {f"settings.{each.name}.{name}": value for each in entries for name, value in each.settings.items()}


def _build(entry: MethodEntry, settings: Settings) -> MethodSum:
    given = settings.get(entry.name, {})
    for name in given:
        if name not in entry.settings:
            accepted = ", ".join(entry.settings) or "none"
            raise InputError(
                f"'{entry.name}' has no setting '{name}' (it has: {accepted}).{closest(name, entry.settings)}"
            )
    checked = read_section(entry.section, entry.name, given)
    return entry.build(**{name: getattr(checked, name) for name in given})
