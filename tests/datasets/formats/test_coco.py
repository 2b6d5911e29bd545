import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists
from PIL import Image
from pycocotools import mask
from pycocotools.coco import COCO

from exports import BOX, HEIGHT, INNER, WIDTH, coco, flat, write_coco, write_json, write_pictures
from incseg.datasets import open_source
from incseg.datasets.formats.coco import decompressed
from incseg.errors import InputError

Edit = Callable[[dict[str, Any]], object]


def square(left: int, top: int, side: int) -> Any:
    pixels = np.zeros((HEIGHT, WIDTH), np.uint8, order="F")
    pixels[top : top + side, left : left + side] = 1
    return pixels


def uncompressed(pixels: Any) -> dict[str, Any]:
    """Run lengths by columns, beginning with what is not set."""
    values = pixels.ravel(order="F")
    edges = np.flatnonzero(np.diff(values)) + 1
    counts = np.diff([0, *edges, len(values)]).tolist()
    return {"size": [HEIGHT, WIDTH], "counts": counts if values[0] == 0 else [0, *counts]}


def written(root: Path, annotations: list[dict[str, Any]], edit: Edit = len) -> Path:
    """Images a.jpg and b.jpg, and one file."""
    write_pictures(root / "images", ["a.jpg", "b.jpg"])
    content = coco(["a.jpg", "b.jpg"], annotations)
    edit(content)
    write_json(root / "annotations.json", content)
    return root


def test_masks_are_those_of_pycocotools_with_the_smaller_on_top(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "data")
    source = open_source("folder", root)
    assert source.classes == ("background", "box", "cat")  # by category id, 3 before 18
    assert (list(source.train.ids), list(source.val.ids)) == (["a", "b"], ["c"])
    reader = COCO(root / "annotations" / "instances_train.json")
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    for annotation in sorted(reader.loadAnns(reader.getAnnIds(imgIds=[7])), key=lambda each: each["category_id"]):
        expected[reader.annToMask(annotation) == 1] = {3: 1, 18: 2}[annotation["category_id"]]
    assert (source.train.mask(0).numpy() == expected).all()
    assert set(np.unique(expected)) == {0, 1, 2}


def test_run_lengths_of_both_kinds_and_crowds(tmp_path: Path) -> None:
    encoded = mask.encode(square(2, 3, 10))
    crowd = uncompressed(square(0, 0, 30))
    root = written(
        tmp_path / "data",
        [
            {
                "image_id": 7,
                "category_id": 3,
                "segmentation": {"size": encoded["size"], "counts": encoded["counts"].decode()},
            },
            {"image_id": 7, "category_id": 18, "segmentation": uncompressed(square(20, 20, 12))},
            {"image_id": 7, "category_id": 18, "segmentation": crowd, "iscrowd": 1},
        ],
    )
    source = open_source("folder", root)
    ids = {name: split.mask(i).numpy() for split in (source.train, source.val) for i, name in enumerate(split.ids)}
    expected = np.where(square(0, 0, 30), 255, 0)
    expected[square(2, 3, 10) == 1] = 1
    expected[square(20, 20, 12) == 1] = 2
    assert (ids["a"] == expected).all()
    assert (ids["b"] == 0).all()  # listed without annotations: background


def test_roboflow_and_detection_only_and_what_is_skipped(tmp_path: Path) -> None:
    def grouped(content: dict[str, Any]) -> None:
        content["categories"] = [
            {"id": 0, "name": "things", "supercategory": "none"},
            {"id": 18, "name": "Katze-猫", "supercategory": "things"},
            {"id": 3, "name": "background", "supercategory": "things"},
        ]

    annotations = [
        {"image_id": 7, "category_id": 18, "segmentation": [flat(BOX), [1, 1, 2, 2]]},
        {"image_id": 7, "category_id": 3, "segmentation": [flat(INNER)]},
        {"image_id": 8, "category_id": 18, "segmentation": [], "bbox": [1, 1, 5, 5]},
    ]
    source = open_source("folder", written(tmp_path / "data", annotations, grouped))
    assert source.classes == ("background", "Katze-猫")
    said = "\n".join(source.notes)
    assert "left out: 1 polygons with fewer than 3 points (first: annotation 1 of" in said
    assert "left out: 1 annotations without an outline (first: annotation 3 of" in said
    assert "left out: 1 categories that only group others (first: things)" in said
    ids = next(split.mask(list(split.ids).index("a")) for split in (source.train, source.val) if "a" in split.ids)
    assert ids[20, 18] == 0  # the shape called background, on top
    assert ids[30, 6] == 1


@given(lists(integers(0, 70), min_size=1, max_size=40))
def test_compressed_run_lengths_are_read_as_pycocotools_writes_them(runs: list[int]) -> None:
    text = mask.frPyObjects({"size": [sum(runs), 1], "counts": runs}, sum(runs), 1)["counts"].decode()
    assert decompressed(text) == runs


GOOD = [{"image_id": 7, "category_id": 3, "segmentation": [flat(BOX)]}]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda c: c["annotations"][0].update(category_id=99),
            "annotations of the category 99, but its categories are 3 'box'",
        ),
        (lambda c: c["annotations"][0].pop("category_id"), "has no 'category_id'"),
        (lambda c: c["annotations"][0].update(image_id=99), "annotations of the image id 99"),
        (lambda c: c["annotations"][0].update(segmentation=[]), "boxes only, no outlines"),
        (lambda c: c["annotations"][0].update(segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "not a list of pairs"),
        (
            lambda c: c["annotations"][0].update(segmentation={"size": [3, 3], "counts": [9]}),
            "are for 3×3, but the image is",
        ),
        (lambda c: c["annotations"][0].update(segmentation={"size": [HEIGHT, WIDTH], "counts": [9]}), "add up to 9"),
        (lambda c: c["annotations"][0].update(segmentation={"size": [HEIGHT, WIDTH], "counts": "zz~"}), "add up to"),
        (lambda c: c["images"][0].update(file_name="gone.jpg"), "annotates the image 'gone.jpg', which is not below"),
        (lambda c: c["images"][0].update(width=99), "was annotated at 99×40, but the image is 48×40"),
        (lambda c: c["images"][1].update(id=7), "two images with the id 7"),
        (lambda c: c["images"][1].update(file_name="a.jpg"), "a.jpg is annotated twice"),
        (lambda c: c["categories"][0].update(name="box"), "the name 'box'"),
        (lambda c: c["categories"][0].pop("name"), "has no 'name'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(edit: Edit, message: str, tmp_path: Path) -> None:
    root = written(tmp_path / "data", copy.deepcopy(GOOD), edit)
    with pytest.raises(InputError, match=message):
        open_source("folder", root)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    root = written(tmp_path / "data", GOOD)
    path = root / "annotations.json"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(InputError, match=r"annotations\.json is not valid JSON \(line 1"):
        open_source("folder", root)


def test_the_archive_of_coco_has_other_files_too(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "data")
    content = json.loads((root / "annotations" / "instances_train.json").read_text())
    write_json(root / "annotations" / "person_keypoints_train.json", content)
    assert len(open_source("folder", root).train) == 2
    Image.new("RGB", (3, 3)).save(root / "images" / "more.png")  # images that are not listed are not read
    assert len(open_source("folder", root).train) == 2
