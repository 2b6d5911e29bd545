"""The images of a folder, found by what an annotation file calls them."""

import os
from collections import defaultdict
from pathlib import Path, PurePosixPath

from incseg.errors import InputError
from incseg.images import IMAGE_SUFFIXES


def files_below(root: Path) -> list[Path]:
    """Every file of a folder and the folders in it, sorted; what is hidden is left out."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        found += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
    return found


def is_image(path: Path) -> bool:
    """Whether a file's name says so."""
    return path.suffix.lower() in IMAGE_SUFFIXES


class ImageFiles:
    """Every image below a folder, by its name."""

    def __init__(self, root: Path):
        self.root = root
        self.all = [path for path in files_below(root) if is_image(path)]
        self._by_name: dict[str, list[Path]] = defaultdict(list)
        for path in self.all:
            self._by_name[path.name].append(path)

    def find(self, written: str, near: Path) -> Path | None:
        """The image that ``written`` means in a file of the folder ``near``; None if there is none.

        As written from that folder or from the root; else by its name, of several the one whose path agrees the most
        with what is written, then the one nearest to the annotation.
        """
        wanted = PurePosixPath(written.replace("\\", "/"))
        for base in (near, near / "images", self.root, self.root / "images"):
            if is_image(Path(wanted)) and (base / wanted).is_file():
                return base / wanted
        candidates = self._by_name.get(wanted.name, [])
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        ranked = sorted(candidates, key=lambda path: _agreement(path, wanted, near), reverse=True)
        if _agreement(ranked[0], wanted, near) == _agreement(ranked[1], wanted, near):
            raise InputError(f"'{written}' may be {ranked[0]} or {ranked[1]}: give images names of their own.")
        return ranked[0]

    def required(self, written: str, near: Path, where: Path) -> Path:
        """As ``find``, and a missing image is an error that names the annotation file."""
        found = self.find(written, near)
        if found is None:
            raise InputError(f"{where} annotates the image '{written}', which is not below {self.root}.")
        return found


def _agreement(path: Path, wanted: PurePosixPath, near: Path) -> tuple[int, int]:
    tail = zip(reversed(path.parts), reversed(wanted.parts), strict=False)
    head = zip(path.parts, near.parts, strict=False)
    return _equal(tail), _equal(head)


def _equal(pairs: "zip[tuple[str, str]]") -> int:
    count = 0
    for one, other in pairs:
        if one != other:
            break
        count += 1
    return count
