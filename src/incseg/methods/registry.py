"""Names for methods: each is written once, in the decorator of the function that lists its parts."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

from pydantic import ValidationError, validate_call

from incseg.errors import InputError, closest
from incseg.methods.base import Method, Part
from incseg.registry import import_modules

Settings = Mapping[str, Mapping[str, Any]]
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class MethodEntry:
    """A registered method and what a person should know before choosing it."""

    name: str
    summary: str
    paper: str
    build: Callable[..., Method]
    alone: bool

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings with their defaults."""
        return {name: p.default for name, p in inspect.signature(self.build).parameters.items()}

    @property
    def needs(self) -> list[str]:
        """What it asks for beyond the step's own data."""
        method = self.build()
        wanted = {
            "teacher": method.needs_teacher,
            "memory": method.remembers,
            "replay images": method.replays,
            "old data": method.keeps_data,
        }
        return [need for need, is_wanted in wanted.items() if is_wanted]


_METHODS: dict[str, MethodEntry] = {}


def method(
    name: str, summary: str, *, paper: str, alone: bool = False
) -> Callable[[Callable[Arguments, Sequence[Part]]], Callable[Arguments, Method]]:
    """Register a function that lists a method's parts; its keyword arguments become the method's settings.

    Args:
        name: how it is written in ``--method``.
        summary: one line for ``incseg list methods``.
        paper: where it comes from.
        alone: it cannot be summed with another.
    """

    def register(list_parts: Callable[Arguments, Sequence[Part]]) -> Callable[Arguments, Method]:
        checked = validate_call(list_parts)

        @wraps(list_parts)
        def build(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Method:
            parts = tuple(checked(*args, **kwargs))
            for part in parts:
                part.origin = name
            return Method(name, parts)

        assert name not in _METHODS, f"two methods are called '{name}'"
        _METHODS[name] = MethodEntry(name, summary, paper, build, alone)
        return build

    return register


def describe_methods() -> list[MethodEntry]:
    """Every registered method, in the order of its file and place."""
    import_modules("incseg.methods")
    return list(_METHODS.values())


def method_names() -> list[str]:
    """The names that may stand in a sum."""
    return [entry.name for entry in describe_methods()]


def parse(text: str, settings: Settings | None = None) -> Method:
    """Read a sum such as ``"mib+ucd"``, with settings by method name: ``{"ucd": {"temperature": 0.1}}``.

    >>> [type(part).__name__ for part in parse("mib+ucd").parts]
    ['UnbiasedCrossEntropy', 'UnbiasedDistillation', 'BalancedInitialisation', 'ContrastiveDistillation']
    """
    settings = settings or {}
    entries = [_entry(name, text) for name in summands(text)]
    names = [entry.name for entry in entries]
    _check_sum(entries)
    for name in settings:
        if name not in names:
            raise InputError(f"there are settings for '{name}', which is not part of the method '{text}'.")
    total = _build(entries[0], settings)
    for entry in entries[1:]:
        total = total + _build(entry, settings)
    return total.resolved()


def summands(text: str) -> list[str]:
    """The names in a sum. A name may itself end in a plus: ``"ilt++ucd"`` is ilt+ and ucd.

    >>> summands("mib + ucd"), summands("ilt+"), summands("ilt++ucd")
    (['mib', 'ucd'], ['ilt+'], ['ilt+', 'ucd'])
    """
    import_modules("incseg.methods")
    names: list[str] = []
    for name in "".join(text.split()).split("+"):
        if not name and names and f"{names[-1]}+" in _METHODS:
            names[-1] += "+"
        else:
            names.append(name)
    return names


def _entry(name: str, text: str) -> MethodEntry:
    import_modules("incseg.methods")
    if name not in _METHODS:
        what = f"'{name}' in '{text}'" if name != text else f"'{name}'"
        raise InputError(
            f"{what} is not a method: choose from {', '.join(_METHODS)}, or sums of them such as mib+ucd."
            f"{closest(name, _METHODS)}"
        )
    return _METHODS[name]


def _check_sum(entries: Sequence[MethodEntry]) -> None:
    names = [entry.name for entry in entries]
    for index, entry in enumerate(entries):
        if entry.alone and len(entries) > 1:
            other = names[1 - index] if index < 2 else names[0]
            raise InputError(f"'{entry.name}' stands alone: it cannot be summed with '{other}'.")
        if entry.name in names[:index]:
            raise InputError(f"'{entry.name}' is named twice in '{'+'.join(names)}': name it once.")


def _build(entry: MethodEntry, settings: Settings) -> Method:
    given = settings.get(entry.name, {})
    for name in given:
        if name not in entry.settings:
            accepted = ", ".join(entry.settings) or "none"
            raise InputError(
                f"'{entry.name}' has no setting '{name}' (it has: {accepted}).{closest(name, entry.settings)}"
            )
    try:
        return entry.build(**given)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"the setting {entry.name}.{first['loc'][0]} cannot be {first['input']!r}: {first['msg']}."
        ) from None
