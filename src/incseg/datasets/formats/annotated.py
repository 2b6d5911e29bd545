"""What the reader of a format yields: classes, and images that each know how to paint their mask."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.source import require_distinct
from incseg.errors import InputError
from incseg.protocol import BACKGROUND, IGNORE

Ids = NDArray[np.uint8]  # (H, W)
Size = tuple[int, int]  # width, height
Part = Literal["train", "val", "test"]
Paint = Callable[[Size, int], Ids]
"""``paint(size, blank)``: a mask of this size, ``blank`` where nothing is labelled; refuses another size."""

# Class names with a meaning of their own; compared without case.
BACKGROUND_NAMES = {"background", "_background_", "__background__", "bg"}
IGNORED_NAMES = {"ignore", "_ignore_", "__ignore__", "ignored", "void", "unlabelled", "unlabeled"}
PARTS: Mapping[str, Part] = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """An image and its annotation; ``image`` is its file, or what reads the bytes of one that lies inside another."""

    name: str
    image: Path | Callable[[], bytes]
    paint: Paint
    part: Part | None = None


@dataclass(frozen=True)
class Classes:
    """The names of a dataset, background first, and the id of each name that annotations may use."""

    names: tuple[str, ...]
    ids: Mapping[str, int]

    @classmethod
    def of(cls, names: Iterable[str], where: Path) -> "Classes":
        """A class called background is id 0, one called void or ignore is 255; the others are 1, 2, … in order."""
        ids: dict[str, int] = {}
        foreground: list[str] = []
        given = [one_line(name) for name in names]
        require_distinct(given, where)
        for name in given:
            if not name:
                raise InputError(f"{where} has a class without a name.")
            if name.casefold() in BACKGROUND_NAMES:
                ids[name] = BACKGROUND
            elif name.casefold() in IGNORED_NAMES:
                ids[name] = IGNORE
            else:
                foreground.append(name)
                ids[name] = len(foreground)
        if not foreground:
            raise InputError(f"{where} names no class besides background.")
        return cls(("background", *foreground), ids)


@dataclass
class Skipped:
    """What a reader leaves out: how often by kind, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, where: object) -> None:
        """Count one; ``kind`` is in the plural, such as "polygons with fewer than 3 points"."""
        self.counts[kind] += 1
        self.first.setdefault(kind, str(where))

    def sentences(self) -> list[str]:
        """One for each kind."""
        return [f"left out: {count} {kind} (first: {self.first[kind]})" for kind, count in self.counts.items()]


@dataclass(frozen=True)
class Annotated:
    """A dataset in a known format: the files it was read from, its classes and its images."""

    files: str
    classes: Classes
    examples: list[Example]
    skipped: Skipped


def part_named(*names: str) -> Part | None:
    """The split that folder or file names speak of: ``train2017`` and ``instances_train`` are train."""
    for name in names:
        for word in re.split(r"[^a-z]+", name.lower()):
            if word in PARTS:
                return PARTS[word]
    return None


def one_line(name: object) -> str:
    """A class name as it can stand on a line of classes.txt."""
    return " ".join(str(name).split())


def require_size(found: Size, stated: Size, where: str) -> None:
    """Refuse an annotation that was made for an image of another size."""
    if found != stated:
        raise InputError(
            f"{where} was annotated at {stated[0]}×{stated[1]}, but the image is {found[0]}×{found[1]}: export it "
            "again, or use the images that were annotated."
        )
