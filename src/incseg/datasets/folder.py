"""Your own data: a folder with ``images/``, ``masks/`` and ``classes.txt``."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from incseg.config import DataConfig
from incseg.datasets.file_split import NOT_LISTED, FileSplit
from incseg.datasets.formats import open_foreign
from incseg.datasets.held_out import hold_out
from incseg.datasets.listed import names_listed
from incseg.datasets.source import Domains, Source, Validation, dataset, existing_root, require_distinct
from incseg.errors import InputError
from incseg.files import read_text
from incseg.images import IMAGE_SUFFIXES
from incseg.protocol import IGNORE

NAMED = 3  # masks in a sentence
LAYOUT = "images/, masks/ (index PNG of the same names), classes.txt (one name per line, background first)"
# Preferred first. JPEG is looked for only to be refused by name: it changes ids.
MASK_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg")
NO_LIST = Validation(given=False, words="which has no val.txt")


@dataset(
    "folder",
    f"your own images: {LAYOUT}; optional train.txt and val.txt list the names of each split; or an export in COCO, "
    "YOLO, LabelMe, CVAT, colour masks or Hugging Face format",
    takes_settings=True,
)
def open_folder(root: Path | None, data: DataConfig) -> Source:
    """Read the lists; without ``train.txt`` and ``val.txt`` a share of the images is kept for validation."""
    root = existing_root(root, "folder", LAYOUT)
    foreign = open_foreign(root, data)
    if foreign is not None:
        return foreign
    classes, values = _classes(root / "classes.txt")
    images = _images(root / "images")
    masks, table = _masks(root / "masks"), _value_table(values)
    notes = _without_image(sorted(masks.keys() - images.keys()))
    if not (root / "train.txt").exists() and not (root / "val.txt").exists():
        kept, held_out = hold_out(_files(root, images, masks, sorted(images), table), classes, data.validation_share)
        domains = _subfolders(sorted(images))
        return Source(root.resolve().name, classes, kept, held_out, notes=notes, domains=domains, validation=NO_LIST)
    train, val = _split_names(root, sorted(images))
    both = sorted(set(train) & set(val))
    if both:
        raise InputError(f"'{both[0]}' is in both train.txt and val.txt of {root}: use it for one of them.")
    train_split, val_split = (_files(root, images, masks, names, table) for names in (train, val))
    return Source(
        root.resolve().name,
        classes,
        train_split,
        val_split,
        notes=notes,
        domains=_subfolders([*train, *val]),
        validation=_validation(root, val),
    )


def _subfolders(names: Sequence[str]) -> Domains | None:
    """The subfolders of images/ as domains, in the order of their names; None where an image lies in none."""
    if not all("/" in name for name in names):
        return None
    return Domains(tuple(sorted({subfolder_of(name) for name in names})), subfolder_of)


def subfolder_of(name: str) -> str:
    """The first folder below images/ on the way to an image."""
    return name.split("/", maxsplit=1)[0]


def _lines(path: Path) -> list[str]:
    """Of the list of classes; an empty one would shift the ids of those below it."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: a data folder must hold {LAYOUT}.") from None
    lines = [line.strip() for line in text.rstrip().splitlines()]
    if "" in lines:
        raise InputError(
            f"line {lines.index('') + 1} of {path} is empty, and every line is the id of a class: delete it, or name "
            "what has that id in the masks."
        )
    return lines


def _classes(path: Path) -> tuple[tuple[str, ...], list[int]]:
    """The names, and for each the value of its pixels in the masks: as in ``car = 255``, or the number of its line."""
    found = [re.fullmatch(r"(.*\S)\s*=\s*(\d+)", line) or line for line in _lines(path)]
    names = tuple(line if isinstance(line, str) else line[1] for line in found)
    values = [index if isinstance(line, str) else int(line[2]) for index, line in enumerate(found)]
    require_distinct(names, path)
    if len(names) < 2:
        raise InputError(
            f"{path} must name the background in its first line and at least one class after it, one per line; it has "
            f"{len(names)} line(s)."
        )
    _refuse_values(path, names, values)
    return names, values


def _refuse_values(path: Path, names: Sequence[str], values: Sequence[int]) -> None:
    for name, value in zip(names, values, strict=True):
        if value > IGNORE:
            raise InputError(f"{path} gives '{name}' the value {value}: masks have values from 0 to {IGNORE}.")
        if (first := names[values.index(value)]) != name:
            raise InputError(
                f"{path} gives '{first}' and '{name}' the same value, {value}; a line without '= VALUE' has its "
                "number, counted from 0."
            )


def _value_table(values: Sequence[int]) -> NDArray[np.int16] | None:
    """(256,) value in a mask file → id; None where they are the same. 255 is void unless it is given to a class."""
    if list(values) == list(range(len(values))):
        return None
    table = np.full(IGNORE + 1, NOT_LISTED, np.int16)
    table[IGNORE] = IGNORE
    table[list(values)] = range(len(values))
    return table


def _images(folder: Path) -> dict[str, Path]:
    """Every image by its name: its path below the folder, without the suffix."""
    if not folder.is_dir():
        raise InputError(f"{folder} is missing: a data folder must hold {LAYOUT}.")
    found: dict[str, Path] = {}
    for path in _visible(folder):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            name = _name(path, folder)
            if name in found:
                raise InputError(f"{found[name].name} and {path.name} in {path.parent} would share one mask.")
            found[name] = path
    if not found:
        raise InputError(f"{folder} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    return found


def _masks(folder: Path) -> dict[str, Path]:
    """Every mask by its name; of several files of one name, the one with the preferred suffix."""
    if not folder.is_dir():
        raise InputError(f"{folder} is missing: a data folder must hold {LAYOUT}.")
    found = [path for path in _visible(folder) if path.suffix.lower() in MASK_SUFFIXES]
    found.sort(key=lambda path: -MASK_SUFFIXES.index(path.suffix.lower()))
    return {_name(path, folder): path for path in found}


def _without_image(names: list[str]) -> tuple[str, ...]:
    """What is said of masks that belong to no image: a photograph may have been lost."""
    if not names:
        return ()
    shown = f"{', '.join(names[:NAMED])}{' and others' if len(names) > NAMED else ''}"
    return (f"{len(names)} mask(s) in masks/ belong to no image, and are left aside: {shown}",)


def _visible(folder: Path) -> list[Path]:
    """Files in a folder and its subfolders, in order, without hidden ones, which some systems put beside every file."""
    return [path for path in sorted(folder.rglob("*")) if not path.name.startswith(".")]


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _split_names(root: Path, names: list[str]) -> tuple[list[str], list[str]]:
    train_list, val_list = root / "train.txt", root / "val.txt"
    val = names_listed(val_list, names) if val_list.exists() else None
    train = names_listed(train_list, names) if train_list.exists() else None
    if val is None:
        val = _without(names, train or [])
    return _without(names, val) if train is None else train, val


def _validation(root: Path, val: Sequence[str]) -> Validation:
    """A train.txt alone gives the images that it leaves over; where it lists all, none were given."""
    if (root / "val.txt").exists():
        return Validation(words="that its val.txt lists")
    return Validation(words="that are not in its train.txt") if val else NO_LIST


def _without(names: list[str], others: list[str]) -> list[str]:
    excluded = set(others)
    return [name for name in names if name not in excluded]


def _files(
    root: Path, images: dict[str, Path], masks: dict[str, Path], names: list[str], table: NDArray[np.int16] | None
) -> FileSplit:
    for name in names:
        if name not in images:
            raise InputError(f"'{name}' is listed in {root}/train.txt or val.txt, but images/ has no such image.")
    found = [masks.get(name, root / "masks" / f"{name}.png") for name in names]
    return FileSplit(names, [images[name] for name in names], found, table)
