from pathlib import Path

import pytest

from incseg.files import replacing


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
