from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask

from exports import BOX, HEIGHT, INNER, WIDTH, flat, numbers, write_pictures, write_ultralytics_masks, write_yolo
from incseg.config import DataConfig
from incseg.datasets import open_source
from incseg.errors import InputError


def test_outlines_are_painted_the_smaller_on_top(tmp_path: Path) -> None:
    source = open_source("folder", write_yolo(tmp_path / "data"))  # INNER stands first in the files
    assert source.classes == ("background", "box", "cat")
    assert (list(source.train.ids), list(source.val.ids)) == (["a", "b"], ["c"])
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    for number, outline in ((1, BOX), (2, INNER)):
        expected[mask.decode(mask.merge(mask.frPyObjects([flat(outline)], HEIGHT, WIDTH))) == 1] = number
    assert (source.train.mask(1).numpy() == expected).all()


def test_numbers_in_ultralytics_masks_are_those_of_names_and_0_is_a_class(tmp_path: Path) -> None:
    source = open_source("folder", write_ultralytics_masks(tmp_path / "data"))
    assert source.classes == ("background", "ground", "box", "cat")
    assert (source.train.mask(0).numpy() == numbers(box=2, cat=3, rest=1)).all()


def test_a_class_called_background_is_the_background(tmp_path: Path) -> None:
    root = write_ultralytics_masks(tmp_path / "data")
    path = root / "data.yaml"
    path.write_text(path.read_text().replace("ground,", "Background,"))
    assert (open_source("folder", root).train.mask(0).numpy() == numbers(box=1, cat=2, rest=0)).all()
    ignored = open_source("folder", root, DataConfig(unlabelled="ignore")).train.mask(0).numpy()
    assert (ignored == numbers(box=1, cat=2, rest=255)).all()


@pytest.mark.parametrize(
    "splits",
    [
        "path: ../other\ntrain: ../images/train\nval: ../images/val\n",  # as Roboflow writes
        "train: /home/me/data/images/train\nval: [/home/me/data/images/val]\n",
        "path: ./\ntrain: train.txt\nval: val.txt\n",  # as CVAT writes
        "train: images/train\nval: images/val\n",
    ],
)
def test_splits_are_found_where_the_yaml_file_was_moved_to(splits: str, tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "data")
    (root / "train.txt").write_text("data/images/train/a.jpg\ndata/images/train/b.jpg\n")
    (root / "val.txt").write_text("data/images/val/c.jpg\n")
    (root / "data.yaml").write_text(splits + "names: ['box', 'cat']\nnc: 2\n")
    source = open_source("folder", root)
    assert (list(source.train.ids), list(source.val.ids)) == (["a", "b"], ["c"])


def test_without_a_yaml_file_classes_txt_will_do(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "data")
    (root / "data.yaml").unlink()
    (root / "classes.txt").write_text("box\ncat\n")
    source = open_source("folder", root)
    assert source.classes == ("background", "box", "cat")
    assert len(source.train) + len(source.val) == 3


def test_images_without_labels_are_background_and_boxes_are_counted(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "data")
    write_pictures(root / "images" / "train", ["empty.jpg"])
    with (root / "labels" / "train" / "a.txt").open("a") as file:
        file.write("1 0.5 0.5 0.1 0.1\n1 0.5 0.5\n")
    source = open_source("folder", root)
    assert (source.train.mask(2).numpy() == 0).all()
    assert f"left out: 1 boxes without an outline (first: {root}/labels/train/a.txt, line 3)" in source.notes
    assert any("1 polygons with fewer than 3 points" in note for note in source.notes)


def boxes_only(root: Path) -> None:
    for path in (root / "labels").rglob("*.txt"):
        path.write_text("0 0.5 0.5 0.2 0.2\n")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (boxes_only, "is a YOLO detection dataset: its label files hold boxes"),
        (
            lambda r: (r / "labels/train/a.txt").write_text("7 0 0 1 0 1 1"),
            r"a\.txt, line 1 has the class 7, but names has 0 to 1",
        ),
        (lambda r: (r / "labels/train/a.txt").write_text("1 0 0 30 0 1 1"), "as a share of the image from 0 to 1"),
        (lambda r: (r / "labels/train/a.txt").write_text("cat 0 0 1 0 1 1"), "must be a class number and coordinates"),
        (
            lambda r: (r / "data.yaml").write_text("train: nowhere\nval: images/val\nnames: [a]"),
            "names the images 'nowhere'",
        ),
        (lambda r: (r / "data.yaml").write_text("names: [a]"), "must name the images of its splits"),
        (
            lambda r: (r / "data.yaml").write_text("train: images/train\nval: images/val\nnames: 3"),
            "must be a list of class names",
        ),
        (lambda r: (r / "data.yaml").write_text("train: images/train\nnames: [a, a]"), "names 'a' twice"),
        (lambda r: (r / "data.yaml").write_text("train: [images/train\nnames: [a"), "is not valid YAML"),
        (
            lambda r: (r / "data.yaml").write_text("train: images/train\nval: images/val\nmasks_dir: m\nnames: [a, b]"),
            r"has no mask .*m/train/a\.png",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(harm: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "data")
    harm(root)
    with pytest.raises(InputError, match=message):
        open_source("folder", root)
