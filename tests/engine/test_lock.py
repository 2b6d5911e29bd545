import errno
import fcntl
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from incseg.engine import lock
from incseg.engine.lock import only_writer
from incseg.errors import InputError
from incseg.run_folder import RunFolder


def answer_of_another_process(folder: RunFolder) -> str:
    """What another process is told that wants to write; 'done' if it may."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with only_writer(folder, print):
                os.write(writing, b"done")
        except InputError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "new" / "run")
    with only_writer(folder, print):
        folder.config.touch()
        said = answer_of_another_process(folder)
        assert said.startswith(
            f"{folder.path} is being written by process {os.getpid()} on {socket.gethostname()} since "
        )
        with pytest.raises(InputError, match="by this process"), only_writer(folder, print):
            pass
        assert "is being written by process" in answer_of_another_process(folder), "it still holds it"
    assert list(folder.path.iterdir()) == [folder.config]
    assert answer_of_another_process(folder) == "done"


def test_the_lock_of_a_dead_process_is_no_lock(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.lock.write_text('{"host": "here", "process": 1, "since": "long ago"}')
    with only_writer(folder, print):
        assert "is being written by process" in answer_of_another_process(folder), "it is this one's now"


def test_a_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    with only_writer(RunFolder(tmp_path / "a" / "b"), print):
        pass
    assert not (tmp_path / "a").exists()


def test_without_locks_the_run_goes_on_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", without)
    said: list[str] = []
    with only_writer(RunFolder(tmp_path), said.append):
        assert said == [
            f"{tmp_path} cannot be locked (No locks available): see to it that no other process writes there."
        ]


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fcntl; msvcrt locks bytes from where a file is read on; and no open file can be removed."""
    unlink = Path.unlink

    def locking(descriptor: int, mode: int, length: int) -> None:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        assert (mode, length) == (2, 1)
        assert position > os.fstat(descriptor).st_size, "what is locked cannot be read"
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, position)

    def unlink_closed(path: Path, missing_ok: bool = False) -> None:
        if path.exists() and any(_is_open(path)):
            raise PermissionError(errno.EACCES, "used by another process")
        unlink(path, missing_ok)

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr(lock, "find_spec", lambda _: None)
    monkeypatch.setattr(Path, "unlink", unlink_closed)


def _is_open(path: Path) -> list[bool]:
    found = []
    for number in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.path.samestat(os.fstat(int(number.name)), path.stat()))
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="what is open is read from /proc")
@pytest.mark.usefixtures("on_windows")
def test_the_lock_of_windows(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with only_writer(folder, print):
        folder.config.touch()
        assert f"is being written by process {os.getpid()} on " in answer_of_another_process(folder)
    assert list(folder.path.iterdir()) == [folder.config]
    assert answer_of_another_process(folder) == "done"
