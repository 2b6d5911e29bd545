from pathlib import Path

import pytest

from incseg.datasets import open_source
from incseg.datasets.listed import names_listed
from incseg.errors import InputError
from samples import write_folder


@pytest.mark.parametrize(
    "line",
    ["003", "003.png", "images/003.png", "./images/003.png", "/data/of/someone/images/003.jpg", "images\\003.png"],
)
def test_a_line_may_be_a_name_a_file_or_a_path(line: str, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=4, val=1, size=32)
    (root / "train.txt").write_text(f"{line}\n001.png\n")
    assert list(open_source("folder", root).train.ids) == ["003", "001"]


def test_names_with_dots_and_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("v1.2\nv1.2.jpg\na/b\nimages/a/b.png\nb.PNG\n")
    assert names_listed(tmp_path / "list", ["v1.2", "a/b", "b"]) == ["v1.2", "v1.2", "a/b", "a/b", "b"]


def test_an_unknown_line_is_refused_as_it_is_written(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=4, val=1, size=32)
    (root / "train.txt").write_text("images/077.png\n")
    with pytest.raises(InputError, match=r"'images/077\.png' is listed"):
        open_source("folder", root)
