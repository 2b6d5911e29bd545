"""One run, one writer: a lock on the folder of a run.

The lock is the operating system's (``fcntl``), on a file that names its holder. It ends with the process that holds it,
however that ends, so there are no stale locks; it also works between machines on network file systems that have locks
(NFS with its lock service). Where a file system has none, the run says so and goes on without.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from incseg.errors import InputError
from incseg.files import make_folder, naming
from incseg.run_folder import RunFolder

HELD = (errno.EACCES, errno.EAGAIN)  # what the system answers when another process has the lock
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
        folder.lock.unlink(missing_ok=True)  # before it is released: whoever waits for it must find a new one
        os.close(descriptor)
        with suppress(OSError):
            for made in missing:
                made.rmdir()


def _locked(folder: RunFolder, say: Callable[[str], None]) -> int:
    """A descriptor of the lock's file; closing it releases the lock."""
    while True:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
