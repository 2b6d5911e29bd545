"""Reading and writing files: what cannot be done is said in a sentence, and no crash leaves half of a file.

A file is written beside its place, synced to the disk, and only then renamed; the folder is synced after that. So after
a crash or a power loss a file is as it was before or as it was to be.
"""

import errno
import os
import re
import shutil
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from incseg.errors import InputError

HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}"
UNFINISHED = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)\.partial|\..+\.\d+")  # the latter: of version 0.1 and before
UMASK = os.umask(0o077)
os.umask(UMASK)  # it can be read only by setting it
ADVICE = {
    errno.ENOSPC: "free some space there, or choose another place",
    errno.EDQUOT: "your quota is used up: delete something there, or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "choose a place that you may use, or change its permissions",
    errno.EPERM: "choose a place that you may use, or change its permissions",
    errno.EIO: "the disk or the network behind it fails",
    errno.ESTALE: "the network file system was lost",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer --data.workers",
    errno.ENOMEM: "close other programs, or use fewer --data.workers",
}


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
    if nearest == path:
        clear_unfinished(path)


def usable_file(path: Path) -> None:
    """Refuse a path at which no file can be written, before the work for it is done."""
    usable_folder(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the file to write.")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path for a file or folder; it takes the place of ``path`` if the block ends well, or vanishes."""
    with naming(path):
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{HOST}-{os.getpid()}.partial")
        try:
            yield temporary
            sync(temporary)
            if temporary.is_dir() and path.is_dir():
                shutil.rmtree(path)  # a folder, unlike a file, cannot be replaced while it holds something
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            remove(temporary)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the machine name the file that is being written; libraries often leave the name out, or hide a
    full disk behind an error of their own."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename and ".partial" not in str(error.filename)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except (RuntimeError, ValueError) as error:
        if cause := machine_error_behind(error):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def machine_error_behind(error: BaseException | None) -> OSError | None:
    """The error of the machine that led to another error, if one did: a full disk, for example."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None


def refusal_of_the_machine(error: OSError) -> str:
    """An error of the disk or the system as a sentence: where, what, and what to do."""
    where = f"{error.filename}: " if error.filename else ""
    advice = f"; {ADVICE[error.errno]}" if error.errno in ADVICE else ""
    return f"{where}{error.strerror or error}{advice}."


def append_line(path: Path, line: str) -> None:
    """Add a line to a file; it is on the disk for certain only after :func:`sync`."""
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def make_folder(path: Path) -> None:
    """Make a folder and all above it, so that they are there after a power loss too."""
    missing = [part for part in (path, *path.parents) if not part.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def sync(path: Path) -> None:
    """Wait until a file, or all that lies in a folder, is on the disk, with the permissions that new files have."""
    if path.is_dir():
        for inside in path.iterdir():
            sync(inside)
        sync_folder(path)
        return
    with path.open("r+b" if os.name == "nt" else "rb") as file:  # Windows syncs only what may be written
        os.fsync(file.fileno())
        if os.fstat(file.fileno()).st_mode & 0o777 == 0o600:  # as libraries make them that write a temporary file
            path.chmod(0o666 & ~UMASK)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk; not every file system can say when."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def clear_unfinished(folder: Path, *, ours: bool = False) -> None:
    """Delete what a killed process left half-written; ``ours``: nobody else writes in this folder."""
    for path in folder.iterdir():
        found = UNFINISHED.fullmatch(path.name)
        if found and (ours or (found[1] == HOST and not is_alive(int(found[2])))):
            remove(path)


def is_alive(process: int) -> bool:
    """Whether a process of this machine still runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True
