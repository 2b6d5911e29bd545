"""The classes of a folder, or those a person names, and the classes of a model: matched by name."""

from collections.abc import Sequence
from pathlib import Path

from incseg.datasets.source import Source, plain
from incseg.errors import InputError, closest
from incseg.protocol import BACKGROUND, IGNORE


def new_classes(known: Sequence[str], source: Source) -> tuple[str, ...]:
    """The classes of a folder that a model does not know; refuses a folder without any."""
    taken = {plain(name): name for name in known}
    new = tuple(name for name in source.classes[1:] if plain(name) not in taken)
    doubled = sorted({name for name in new if [plain(other) for other in new].count(plain(name)) > 1})
    if doubled:
        raise InputError(f"classes.txt in {source.name} names one class twice: {', '.join(doubled)}.")
    if not new:
        raise InputError(
            f"the model already knows all classes of {source.name} ({', '.join(source.classes[1:])}): "
            "there is none to add."
        )
    if plain(source.classes[0]) in taken and plain(source.classes[0]) != plain(known[0]):
        raise InputError(
            f"the first line of classes.txt in {source.name} is '{source.classes[0]}', a class of the model: the "
            "background comes first, as id 0 of the masks."
        )
    if len(known) + len(new) > IGNORE:
        raise InputError(
            f"there can be at most {IGNORE} classes with background, since the id {IGNORE} marks ignored pixels."
        )
    return new


def channels_by_name(names: Sequence[str], data: Path, classes: Sequence[str]) -> list[int]:
    """The channel of every class of a folder, which must name all classes of the model, in any order, and no other."""
    known = {plain(name): channel for channel, name in enumerate(classes) if channel != BACKGROUND}
    named, file = {plain(name) for name in names[1:]}, data / "classes.txt"
    if plain(names[0]) in known:
        raise InputError(f"the first line of {file} is '{names[0]}': the background comes first.")
    for name in names[1:]:
        if plain(name) not in known:
            raise InputError(
                f"{file} names '{name}', which the model does not know: statistics are gathered from the images that "
                f"the model was trained on, with its own classes.{closest(name, classes[1:])}"
            )
    missing = [name for name in classes[1:] if plain(name) not in named]
    if missing:
        raise InputError(f"{file} does not name {', '.join(missing)}: the statistics need every class of the model.")
    return [BACKGROUND, *(known[plain(name)] for name in names[1:])]


def known_class(name: str, classes: Sequence[str]) -> str:
    """A class of the model as the model spells it."""
    found = next((known for known in classes[BACKGROUND + 1 :] if plain(known) == plain(name)), None)
    if found is None:
        raise InputError(
            f"the model has no class '{name}': it knows {', '.join(classes[1:])}.{closest(name, classes[1:])}"
        )
    return found
