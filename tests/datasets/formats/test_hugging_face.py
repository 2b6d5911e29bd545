from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from exports import numbers, write_json, write_parquet, write_saved_to_disk
from incseg.datasets import open_source
from incseg.errors import InputError


@pytest.mark.parametrize("write", [write_parquet, write_saved_to_disk])
def test_rows_are_images_with_masks(write: Callable[[Path], Path], tmp_path: Path) -> None:
    source = open_source("folder", write(tmp_path / "data"))
    assert source.classes == ("background", "box", "cat")
    assert (len(source.train), len(source.val)) == (2, 1)
    assert (source.train.mask(1).numpy() == numbers(box=1, cat=2, rest=0)).all()
    assert source.train.image(0).shape == (3, 40, 48)
    assert not source.train.missing()


def no_names(root: Path) -> None:
    (root / "id2label.json").unlink()


def labels_of_images(root: Path) -> None:
    """A dataset for classification: the label is a number."""
    path = root / "data" / "train-00000-of-00001.parquet"
    rows = parquet.read_table(path)
    parquet.write_table(rows.set_column(1, "label", pyarrow.array([1, 2])), path)


def no_bytes(root: Path) -> None:
    path = root / "data" / "train-00000-of-00001.parquet"
    cells = [{"bytes": None, "path": "x.png"}] * 2
    cell = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    parquet.write_table(pyarrow.table({"image": pyarrow.array(cells, cell), "label": pyarrow.array(cells, cell)}), path)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (no_names, r"does not name the classes of its masks: write them into .*id2label\.json"),
        (labels_of_images, "has no column of pictures called mask, label, .*; its columns are image, label"),
        (no_bytes, "'image' of row 0 in .* holds no picture"),
        (
            lambda r: write_json(r / "id2label.json", {"0": "background", "1": "box"}),
            "holds the value 2, which .*id2label",
        ),
        (lambda r: write_json(r / "id2label.json", ["box"]), r"must be \{\"0\""),
        (lambda r: (r / "data/train-00000-of-00001.parquet").write_bytes(b"PAR1 not"), "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(harm: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    root = write_parquet(tmp_path / "data")
    harm(root)
    with pytest.raises(InputError, match=message):
        open_source("folder", root)
