from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from exports import (
    BLUE,
    HEIGHT,
    RED,
    WIDTH,
    numbers,
    write_camvid,
    write_cvat_masks,
    write_json,
    write_pictures,
    write_roboflow_masks,
)
from incseg.config import DataConfig
from incseg.datasets import open_source
from incseg.errors import InputError
from incseg.images import index_image
from samples import write_cityscapes

UNDECIDED = 255


def without_border(rest: int = 0) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = numbers(box=1, cat=2, rest=rest)
    values[:2] = rest
    return values


def test_colours_of_cvats_label_map(tmp_path: Path) -> None:
    root = write_cvat_masks(tmp_path / "data")
    source = open_source("folder", root)
    assert source.classes == ("background", "box", "cat")
    assert sorted([*source.train.ids, *source.val.ids]) == ["a", "b", "c"]
    assert (source.train.mask(0).numpy() == without_border()).all()
    ignored = open_source("folder", root, DataConfig(unlabelled="ignore"))
    assert (ignored.train.mask(0).numpy() == without_border(rest=255)).all()


def test_camvids_void_is_ignored_and_its_test_images_left_out(tmp_path: Path) -> None:
    source = open_source("folder", write_camvid(tmp_path / "data"))
    assert (source.classes, list(source.train.ids), list(source.val.ids)) == (
        ("background", "box", "cat"),
        ["a"],
        ["b"],
    )
    assert (source.train.mask(0).numpy() == without_border(rest=255)).all()
    assert "1 test images are left out" in source.notes


def test_roboflows_numbers(tmp_path: Path) -> None:
    source = open_source("folder", write_roboflow_masks(tmp_path / "data"))
    assert (list(source.train.ids), list(source.val.ids)) == (["a"], ["b"])
    assert (source.val.mask(0).numpy() == numbers(box=1, cat=2, rest=0)).all()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labelmap.json", {"background": [0, 0, 0], "box": list(RED), "cat": list(BLUE)}),
        (
            "classes.json",
            [
                {"name": "box", "color": "#fa3253"},
                {"name": "cat", "color": "#24b353"},
                {"name": "bg", "color": "#000000"},
            ],
        ),
        (
            "label_colors.txt",
            f"0 0 0\tbackground\n{RED[0]} {RED[1]} {RED[2]}\tbox\n{BLUE[0]} {BLUE[1]} {BLUE[2]}\t\tcat\n",
        ),
        ("colors.csv", f"background,0,0,0\nbox,{RED[0]},{RED[1]},{RED[2]}\ncat,{BLUE[0]},{BLUE[1]},{BLUE[2]}\n"),
    ],
)
def test_label_maps_in_other_spellings(name: str, content: object, tmp_path: Path) -> None:
    root = write_cvat_masks(tmp_path / "data")
    (root / "labelmap.txt").unlink()
    if isinstance(content, str):
        (root / name).write_text(content)
    else:
        write_json(root / name, content)
    source = open_source("folder", root)
    assert source.classes == ("background", "box", "cat")
    assert (source.train.mask(0).numpy() == without_border()).all()


def test_vocs_palette_borders_and_lists(tmp_path: Path) -> None:
    root = tmp_path / "VOC2012"
    write_pictures(root / "JPEGImages", ["a.jpg", "b.jpg", "unlabelled.jpg"])
    (root / "SegmentationClass").mkdir()
    for name in "ab":
        index_image(numbers(box=5, cat=8, rest=0), "voc").save(root / "SegmentationClass" / f"{name}.png")
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    for part, name in (("train", "b"), ("val", "a")):
        (root / "ImageSets" / "Segmentation" / f"{part}.txt").write_text(name)
    source = open_source("folder", root)
    assert (list(source.train.ids), list(source.val.ids)) == (["b"], ["a"])
    assert source.classes[5] == "bottle"
    assert (source.train.mask(0).numpy() == numbers(box=5, cat=8, rest=0)).all()  # 255 is the colour of borders
    assert "left out: 1 images without a mask (first: JPEGImages/unlabelled.jpg)" in source.notes


def test_suffixes_of_cityscapes_and_masks_beside_their_images(tmp_path: Path) -> None:
    city = write_cityscapes(tmp_path / "city", {"ulm_0_1": [7, 26, 4]}, {"ulm_0_2": [7]})
    source = open_source("folder", city)
    assert (list(source.train.ids), list(source.val.ids)) == (["ulm_0_1_leftImg8bit"], ["ulm_0_2_leftImg8bit"])
    assert source.train.mask(0)[0].tolist() == [1, 1, 14, 14, 255, 255]
    root = tmp_path / "beside"
    write_pictures(root / "photos", ["a.jpg", "b.jpg"])
    for name in "ab":
        Image.fromarray(numbers(box=1, cat=2, rest=0)).save(root / "photos" / f"{name}_label.png")
    (root / "classes.txt").write_text("background\nbox\ncat\n")
    source = open_source("folder", root)
    assert (source.train.mask(0).numpy() == numbers(box=1, cat=2, rest=0)).all()


def no_images(root: Path) -> None:
    for path in (root / "JPEGImages").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (no_images, r"has 3 masks, but no image of the same names.*'Save images'"),
        (
            lambda r: Image.new("RGB", (WIDTH, HEIGHT), (1, 2, 3)).save(r / "SegmentationClass/a.png"),
            r"1920 pixels of the mask .* have the colour \(1, 2, 3\)",
        ),
        (lambda r: Image.new("RGB", (5, 5)).save(r / "SegmentationClass/a.png"), "is 5×5 but its image is 48×40"),
        (lambda r: (r / "SegmentationClass/a.png").write_bytes(b"no"), "it is not an image file"),
        (lambda r: (r / "labelmap.txt").write_text("a:0,0,0::\nb:0,0,0::\n"), "'b' and another class the same colour"),
        (lambda r: (r / "labelmap.txt").write_text("a:0,0,0::\na:1,0,0::\n"), "names 'a' twice"),
        (lambda r: (r / "labelmap.txt").write_text("background:0,0,0::\n"), "names no class besides background"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(harm: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    root = write_cvat_masks(tmp_path / "data")
    harm(root)
    with pytest.raises(InputError, match=message):
        open_source("folder", root)


def test_masks_as_jpeg_are_explained(tmp_path: Path) -> None:
    root = write_cvat_masks(tmp_path / "data")
    path = root / "SegmentationClass" / "a.png"
    with Image.open(path) as mask:
        mask.save(path.with_suffix(".jpg"))
    path.unlink()
    with pytest.raises(InputError, match="JPEG smears colours: save masks as PNG"):
        open_source("folder", root)
