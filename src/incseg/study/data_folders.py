"""Where the data of several recipes lies, as one writes it: ``DIR``, ``DATASET=DIR``, ``COLUMN=DIR``."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from incseg.errors import InputError

Key = TypeVar("Key", bound=Hashable)


def data_roots(given: Sequence[str], datasets: Collection[str], what: str) -> dict[str, Path]:
    """Folders by dataset, from one ``DIR`` or several ``DATASET=DIR``; ``what`` a person may choose fewer of."""
    datasets = sorted(set(datasets))
    named = dict(text.split("=", 1) for text in given if "=" in text)
    plain = [text for text in given if "=" not in text]
    if len(plain) > 1 or (plain and (named or len(datasets) > 1)):
        wish = " ".join(f"{name}=DIR" for name in datasets)
        raise InputError(
            f"--data-root {' '.join(given)} does not say which dataset is where: write --data-root {wish}, or choose "
            f"{what} of one dataset."
        )
    for name in named:
        if name not in datasets:
            raise InputError(f"--data-root names '{name}', but the {what} are of {', '.join(datasets)}.")
    return {name: Path(root) for name, root in ([(d, plain[0]) for d in datasets] if plain else named.items())}


def lists_of_images(given: Sequence[str], columns: Mapping[Key, str], what: str) -> dict[Key, Path]:
    """Folders of published lists by column, from one ``DIR`` or several ``COLUMN=DIR``, or a part of its name."""
    found: dict[Key, Path] = {}
    for text in given:
        named, equals, folder = text.rpartition("=")
        fitting = [column for column, name in columns.items() if not equals or is_part(named, name)]
        if len(fitting) != 1:
            wish = " ".join(f"{name}=DIR" for name in columns.values())
            raise InputError(
                f"--splits {text} fits {len(fitting)} of the {what}, and lists are of one: write --splits {wish}."
            )
        found[fitting[0]] = Path(folder)
    return found


def is_part(name: str, protocol: str) -> bool:
    """Compares whole fields: 10-1 is not a part of 10-10."""
    return f"/{name.strip('/')}/" in f"/{protocol}/"


def data_settings(root: Path | None, splits: Path | None) -> dict[str, Path]:
    """The settings of the data that say where it is, as far as given."""
    return {name: path for name, path in (("root", root), ("splits", splits)) if path is not None}
