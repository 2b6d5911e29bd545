"""The names in train.txt and val.txt, however they are written."""

from collections.abc import Collection
from pathlib import Path, PurePosixPath

from incseg.datasets.source import read_lines
from incseg.errors import InputError
from incseg.images import IMAGE_SUFFIXES


def names_listed(path: Path, names: Collection[str]) -> list[str]:
    """The lines of a list; a line may be a name, a file name, or a path of any length that ends in one."""
    known = set(names)
    return [_name(line, known) for line in read_lines(path)]


def _name(line: str, known: set[str]) -> str:
    """The longest end of a path that is a name, with its suffix or without; an unknown line stays, to be refused."""
    path = PurePosixPath(line.replace("\\", "/"))
    bare = path.with_suffix("") if path.suffix.lower() in IMAGE_SUFFIXES else path
    ends = [str(PurePosixPath(*each.parts[start:])) for start in range(len(path.parts)) for each in (path, bare)]
    return next((name for name in (line, *ends) if name in known), line)


def check_lists(path: Path) -> None:
    """Refuse published lists of the images of each step that are not there."""
    if not path.exists():
        raise InputError(f"--splits {path} is neither a folder of lists (train-0.npy, …) nor a .json file of them.")
