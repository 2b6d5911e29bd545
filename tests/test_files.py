from pathlib import Path

import pytest

from incseg import cli
from incseg.errors import InputError
from incseg.files import expanded, replacing, usable_file, usable_folder


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
