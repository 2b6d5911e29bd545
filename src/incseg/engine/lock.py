"""One run, one writer: a lock on the folder of a run.

The lock is the operating system's (``fcntl``, on Windows ``msvcrt``), on a file that names its holder. It ends with the
process that holds it, however that ends, so there are no stale locks; it also works between machines on network file
systems that have locks (NFS with its lock service). Where a file system has none, the run says so and goes on without.
"""

import errno
import importlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from incseg.errors import InputError
from incseg.files import make_folder, naming
from incseg.run_folder import RunFolder

HELD = (errno.EACCES, errno.EAGAIN)  # what the system answers when another process has the lock
BEYOND = 2**20  # the byte that is locked on Windows, where a locked byte cannot be read: behind the holder's name
_mine: set[tuple[int, Path]] = set()  # by process: the system does not keep one from its own locks


@contextmanager
def only_writer(folder: RunFolder, say: Callable[[str], None]) -> Iterator[None]:
    """Keep all other processes from writing in a folder; a folder that stays empty is removed again."""
    place = folder.path.absolute()
    mine = (os.getpid(), place)
    missing = [part for part in (place, *place.parents) if not part.exists()]
    make_folder(place)
    if mine in _mine:
        raise InputError(f"{folder.path} is being written by this process.")
    descriptor = _locked(folder, say)
    _mine.add(mine)
    try:
        yield
    finally:
        _mine.remove(mine)
        _release(folder.lock, descriptor)
        with suppress(OSError):
            for made in missing:
                made.rmdir()


def _locked(folder: RunFolder, say: Callable[[str], None]) -> int:
    """A descriptor of the lock's file; closing it releases the lock."""
    while True:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _take(descriptor)
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if error.errno in HELD:
                raise InputError(
                    f"{folder.path} is being written by {holder}: wait until it ends, or choose another --out."
                ) from None
            say(f"{folder.path} cannot be locked ({error.strerror}): see to it that no other process writes there.")
            return os.open(os.devnull, os.O_RDONLY)
        if _is_current(descriptor, folder.lock):
            with naming(folder.lock):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(_myself()).encode())
            return descriptor
        os.close(descriptor)  # its holder has just removed it


def _take(descriptor: int) -> None:
    """Lock an open file without waiting; an OSError with an errno of ``HELD`` says that another process has it."""
    if find_spec("fcntl") is not None:
        fcntl = importlib.import_module("fcntl")
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    msvcrt = importlib.import_module("msvcrt")
    os.lseek(descriptor, BEYOND, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)


def _release(lock: Path, descriptor: int) -> None:
    """Remove the file, then end the lock, so that whoever waits finds a new one; Windows removes only closed files."""
    try:
        lock.unlink(missing_ok=True)
        os.close(descriptor)
    except PermissionError:
        os.close(descriptor)
        with suppress(OSError):  # on Windows: another process has opened it since
            lock.unlink(missing_ok=True)


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _myself() -> dict[str, str | int]:
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "process": os.getpid(), "since": now}


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.read(descriptor, 4096))
        return f"process {found['process']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
