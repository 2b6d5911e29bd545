"""What can be chosen by name: built in, from other installed packages, or from a single file.

A method or a dataset registers itself by its decorator, when its module is imported. Which modules those are:

- every module of ``incseg.methods`` and ``incseg.datasets``;
- those that installed packages name as entry points of the groups ``incseg.methods`` and ``incseg.datasets``;
- files given to :func:`load_plugin`, which is what ``--plugin my_file.py`` does.

Generators of pictures come from installed packages alone, as entry points of the group ``incseg.generators``.
"""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from incseg.console import Console
from incseg.errors import InputError, closest
from incseg.files import expanded


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """How a person chooses it."""


Item = TypeVar("Item", bound=Named)


class Registry(Generic[Item]):
    """All items of one kind by name; modules are only imported when somebody asks.

    Args:
        kind: what an item is called in messages, such as "method".
        package: the package of the built-in ones, and the entry point group of others.
        advice: added to the list of names in the message about an unknown one.
    """

    def __init__(self, kind: str, package: str, advice: str = "") -> None:
        self.kind, self.package, self.advice = kind, package, advice
        self._items: dict[str, Item] = {}
        self._origins: dict[str, str] = {}  # by name: where the item is defined
        self._broken: dict[str, str] = {}  # by the name of the entry point: why it cannot be loaded
        self._is_loaded = False

    def add(self, item: Item, definition: Callable[..., object]) -> None:
        """Register an item under its name; ``definition`` is the decorated function.

        Running the same definition again replaces the item; another definition under the same name is refused.
        """
        if not definition.__module__.startswith(f"{self.package}."):
            import_modules(self.package)  # so that a plugin, and not a built-in, is blamed for taking a name
        origin = _origin(definition)
        known = self._origins.setdefault(item.name, origin)
        if known != origin:
            raise InputError(f"two {self.kind}s are called '{item.name}': one in {known}, one in {origin}; rename one.")
        self._items[item.name] = item

    def all(self) -> list[Item]:
        """Every item that can be loaded, by name."""
        self._load()
        return [self._items[name] for name in sorted(self._items)]

    def names(self) -> list[str]:
        """The names of all items."""
        return [item.name for item in self.all()]

    def find(self, name: str, text: str = "") -> Item:
        """The item of a name; ``text`` is what the person wrote, if the name is a piece of it."""
        names = self.names()
        if name in self._items:
            return self._items[name]
        if name in self._broken:
            raise InputError(f"the {self.kind} '{name}' is not available: {self._broken[name]}.")
        written = f"'{name}' in '{text}'" if text not in ("", name) else f"'{name}'"
        plugin = f" If a file of yours defines this {self.kind}, add --plugin FILE."
        broken = "".join(f" Note that {reason}." for reason in self._broken.values())
        raise InputError(
            f"{written} is not a {self.kind}: choose from {', '.join(names)}{self.advice}."
            f"{closest(name, names)}{plugin}{broken}"
        )

    def _load(self) -> None:
        if self._is_loaded:
            return
        import_modules(self.package)
        self._is_loaded = True  # already here: a plugin may ask for other items while it is imported
        for point in sorted(entry_points(group=self.package), key=lambda point: point.name):
            self._load_entry_point(point)

    def _load_entry_point(self, point: EntryPoint) -> None:
        """Import what an entry point names; if that fails, say so and continue with the others."""
        try:
            point.load()
        except (Exception, SystemExit) as error:  # it runs code of others, which may raise anything
            package = f" of {point.dist.name}" if point.dist else ""
            reason = f"the plugin '{point.name}'{package} ({point.value}) cannot be loaded: {_in_one_line(error)}"
            self._broken[point.name] = reason
            Console(stderr=True).say(f"{reason}; it is left out.")


def import_modules(package: str) -> None:
    """Import every module of a package; a file added to it is thereby found, without a list to maintain."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")


METHODS, DATASETS, GENERATORS = "incseg.methods", "incseg.datasets", "incseg.generators"  # entry point groups

PLUGINS: list[Path] = []
"""Files that were loaded, for the commands of further processes that need them too."""


def load_plugin(path: Path) -> None:
    """Import a single Python file, whose decorators register methods or datasets."""
    path = expanded(path).resolve()
    if not path.is_file():
        raise InputError(f"the plugin {path} is not a file: give the path of a Python file.")
    if path.suffix != ".py" or "." in path.stem:
        raise InputError(f"the plugin {path} is not a Python file: its name must be like my_file.py.")
    # The module is named after its file and its folder is on the path, so that worker processes can import it too.
    name = path.stem
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    importlib.invalidate_caches()
    found = importlib.util.find_spec(name) if name != "__main__" else None
    if found is None or found.origin is None or Path(found.origin).resolve() != path:
        raise InputError(f"the plugin {path} has the name of another Python module, '{name}': rename it.")
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # it runs code of others, which may raise anything
        raise InputError(f"the plugin {path} cannot be loaded: {_in_one_line(error)}.") from error
    if path not in PLUGINS:
        PLUGINS.append(path)


@contextmanager
def _installed_alone() -> Iterator[None]:
    """Inside, what only lies in the working folder is not found."""
    here, path = Path.cwd().resolve(), sys.path[:]
    try:
        sys.path[:] = [place for place in path if place and Path(place).resolve() != here]
        importlib.invalidate_caches()
        yield
    finally:
        sys.path[:] = path


def installed_module(name: str) -> ModuleType:
    """Import an installed module by its name; one that only lies in the working folder is not."""
    with _installed_alone():
        return importlib.import_module(name)


def installed_generators() -> dict[str, EntryPoint]:
    """The generators of pictures that installed packages offer, by name."""
    with _installed_alone():
        return {point.name: point for point in entry_points(group=GENERATORS)}


def module_in_file(path: Path) -> ModuleType:
    """Import a single Python file that a person named, and nothing beside it."""
    path = expanded(path).resolve(strict=True)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _origin(definition: Callable[..., Any]) -> str:
    """Where a function is defined, for messages."""
    code = getattr(inspect.unwrap(definition), "__code__", None)
    return f"{code.co_filename} (line {code.co_firstlineno})" if code else f"{definition.__module__}"


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
