"""Writing files so that a crash, or a reader beside us, never meets half of one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from incseg.errors import InputError


def usable_folder(path: Path) -> None:
    """Refuse a path at which no folder can be: one of its parts is a file."""
    for part in (path, *path.parents):
        if part.exists():
            if not part.is_dir():
                raise InputError(f"{path} cannot be used as a folder: {part} is a file.")
            return


def usable_file(path: Path) -> None:
    """Refuse a path at which no file can be written, before the work for it is done."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the file to write.")
    usable_folder(path.parent)
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not os.access(nearest, os.W_OK):
        raise InputError(f"{path} cannot be written: {nearest} is write-protected.")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path for a file or folder; it takes the place of ``path`` if the block ends well, or vanishes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        if temporary.is_dir() and path.is_dir():
            shutil.rmtree(path)  # a folder, unlike a file, cannot be replaced while it holds something
        temporary.replace(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
