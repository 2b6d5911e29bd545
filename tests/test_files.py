import errno
import os
import stat
from pathlib import Path

import pytest

from incseg import cli
from incseg.errors import InputError
from incseg.files import clear_unfinished, expanded, refusal_of_the_machine, replacing, usable_file, usable_folder


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with replacing(path) as temporary:
        temporary.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # nothing was written, so there is nothing to put in its place
    assert path.read_text() == "one"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_a_home_folder_of_nobody_is_refused() -> None:
    assert expanded(Path("~/x")) == Path.home() / "x"
    with pytest.raises(InputError, match=r"~nobody-of-that-name/x cannot be used: there is no user"):
        expanded(Path("~nobody-of-that-name/x"))


def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usable_file(tmp_path / "new" / "folder" / "file")
    assert not (tmp_path / "new").exists()
    (tmp_path / "there").write_text("")
    usable_file(tmp_path / "there")  # it will be replaced
    with pytest.raises(InputError, match="is a folder: name the file to write"):
        usable_file(tmp_path)
    with pytest.raises(InputError, match="there is a file"):
        usable_file(tmp_path / "there" / "file")
    with pytest.raises(InputError, match="File name too long"):
        usable_folder(tmp_path / ("x" * 300))
    monkeypatch.setattr("os.access", lambda *_: False)  # whoever runs the tests may be allowed everything
    with pytest.raises(InputError, match=f"new cannot be written: {tmp_path} is write-protected"):
        usable_file(tmp_path / "new" / "file")
    with pytest.raises(InputError, match="is write-protected"):
        usable_folder(tmp_path / "new")


@pytest.mark.parametrize("command", [["data", "split", "shapes/4-2"], ["data", "check", "shapes"]])
def test_a_folder_as_out_is_refused_before_any_work(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.strip() == f"incseg: {tmp_path} is a folder: name the file to write."
    assert not said.out


def test_a_file_is_on_the_disk_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_sync(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def watched_replace(self: Path, target: Path) -> Path:
        events.append("rename")
        return replace(self, target)

    monkeypatch.setattr("os.fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    with replacing(tmp_path / "new" / "file") as temporary:
        temporary.write_text("one")
    assert events == ["folder", "file", "rename", "folder"]  # the first: that of the new folder's name
    events.clear()
    with replacing(tmp_path / "folder") as temporary:
        (temporary / "inside").mkdir(parents=True)
        (temporary / "inside" / "file").write_text("two")
    assert events == ["file", "folder", "folder", "rename", "folder"]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_full_disk_is_named_with_the_file_even_behind_the_error_of_a_library(hidden: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(OSError, match="No space left") as refused, replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            if hidden:
                raise RuntimeError("unexpected pos 704 vs 598")  # noqa: B904 - as PyTorch does it
            raise
    assert refusal_of_the_machine(refused.value).startswith(f"{path}: No space left on device; free some space there")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("x")
        mine = temporary.name
    dead = mine.replace(f"-{os.getpid()}.", "-999999999.")
    elsewhere = f".file.{'0' * 8}-5.partial"
    for name in (mine, dead, elsewhere, ".file", ".config.partial"):
        (tmp_path / name).touch()
    usable_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", mine, elsewhere, ".file", ".config.partial"}
    clear_unfinished(tmp_path, ours=True)
    assert {path.name for path in tmp_path.iterdir()} == {"file", ".file", ".config.partial"}
