"""Reading and writing files: what cannot be done is said in a sentence, and no crash leaves half of a file."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from incseg.errors import InputError


def expanded(path: Path) -> Path:
    """A path that begins with ``~`` or ``~name``, from the root."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise InputError(f"{path} cannot be used: there is no user {path.parts[0].removeprefix('~')!r} here.") from None


def read_text(path: Path) -> str:
    """The text of a file that a person wrote; that it is missing is for the caller to say."""
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows puts a mark before the first letter
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it in that encoding.") from None


def usable_folder(path: Path) -> None:
    """Refuse a path at which no folder can be written, before the work for it is done."""
    try:
        nearest = next(part for part in (path, *path.absolute().parents) if part.exists())
    except OSError as error:
        raise InputError(f"{path} cannot be used as a folder: {error.strerror}.") from None
    if not nearest.is_dir():
        raise InputError(f"{path} cannot be used as a folder: {nearest} is a file.")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"{path} cannot be written: {nearest} is write-protected.")


def usable_file(path: Path) -> None:
    """Refuse a path at which no file can be written, before the work for it is done."""
    usable_folder(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the file to write.")


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
