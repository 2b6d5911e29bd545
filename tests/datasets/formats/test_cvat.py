from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pycocotools import mask

from exports import BOX, HEIGHT, INNER, WIDTH, cvat_image, cvat_polygon, flat, write_cvat
from incseg.datasets import open_source
from incseg.datasets.source import Source
from incseg.errors import InputError


def ids_of(source: Source, name: str = "a") -> NDArray[Any]:
    split = next(split for split in (source.train, source.val) if name in split.ids)
    return split.mask(list(split.ids).index(name)).numpy()


def one(root: Path, shapes: str) -> Path:
    return write_cvat(root, cvat_image("a.jpg", shapes))


def test_polygons_are_painted_by_z_order_and_then_by_place(tmp_path: Path) -> None:
    source = open_source("folder", write_cvat(tmp_path / "data"))
    assert source.classes == ("background", "box", "cat")
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    for number, outline in ((1, BOX), (2, INNER)):
        expected[mask.decode(mask.merge(mask.frPyObjects([flat(outline)], HEIGHT, WIDTH))) == 1] = number
    assert (ids_of(source, "b") == expected).all()
    later = one(tmp_path / "later", cvat_polygon("cat", INNER) + cvat_polygon("box", BOX))
    assert set(np.unique(ids_of(open_source("folder", later)))) == {0, 1}


def test_boxes_ellipses_and_masks(tmp_path: Path) -> None:
    shapes = (
        '<box label="box" occluded="0" xtl="2.0" ytl="3.0" xbr="12.0" ybr="8.0" z_order="0"/>'
        '<box label="box" xtl="20" ytl="20" xbr="30" ybr="24" rotation="90" z_order="0"/>'
        '<ellipse label="cat" cx="38" cy="10" rx="6" ry="4" z_order="0"/>'
        '<mask label="cat" rle="1, 2, 2, 1" left="3" top="30" width="3" height="2" z_order="0"></mask>'
        '<polyline label="cat" points="1,1;5,5"/><polygon label="cat" points="1,1;5,5"/><tag label="cat"/>'
    )
    source = open_source("folder", one(tmp_path / "data", shapes))
    ids = ids_of(source)
    assert (ids[3:8, 2:12] == 1).all()
    assert (ids[17:27, 23:27] == 1).all()  # 10 × 4 turned upright around its centre
    assert (ids == 1).sum() == 50 + 40
    assert ids[30:32, 3:6].tolist() == [[0, 2, 2], [0, 0, 2]]
    assert abs((ids[:20] == 2).sum() - np.pi * 24) < 5
    assert sorted(note for note in source.notes if note.startswith("left out")) == [
        f"left out: 1 polygons with fewer than 3 points (first: 'a.jpg' of {tmp_path}/data/annotations.xml)",
        f"left out: 1 shapes of the kind 'polyline' (first: 'a.jpg' of {tmp_path}/data/annotations.xml)",
    ]


def test_subsets_of_a_project_are_its_splits(tmp_path: Path) -> None:
    shapes = cvat_polygon("box", BOX)
    images = cvat_image("a.jpg", shapes, "Train") + cvat_image("b.jpg", shapes, "Validation")
    root = write_cvat(tmp_path / "data", images)
    for name, part in (("a", "Train"), ("b", "Validation")):
        (root / "images" / part).mkdir()
        (root / "images" / f"{name}.jpg").rename(root / "images" / part / f"{name}.jpg")
    source = open_source("folder", root)
    assert (list(source.train.ids), list(source.val.ids)) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (cvat_polygon("dog", BOX), "the label 'dog', which is not in the label list"),
        ('<polygon label="box" points="1,1;x,2;3,3"/>', "coordinates that are not numbers"),
        ('<polygon points="1,1;x,2;3,3"/>', "a <polygon> of .* has no 'label'"),
        ('<mask label="box" rle="1,2" left="0" top="0" width="9" height="9"/>', "add up to 3, not 9×9"),
        ("<polygon", "is not valid XML"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(shapes: str, message: str, tmp_path: Path) -> None:
    root = one(tmp_path / "data", shapes)
    with pytest.raises(InputError, match=message):
        open_source("folder", root)


def test_videos_missing_images_and_other_sizes(tmp_path: Path) -> None:
    root = write_cvat(tmp_path / "video", '<track id="0" label="box"></track>')
    with pytest.raises(InputError, match="'CVAT for video', which is not supported"):
        open_source("folder", root)
    with pytest.raises(InputError, match=r"annotates the image 'x\.jpg'"):
        open_source("folder", write_cvat(tmp_path / "missing", cvat_image("x.jpg", "")))
    grown = cvat_image("a.jpg", "").replace(f'width="{WIDTH}"', 'width="100"')
    with pytest.raises(InputError, match="was annotated at 100×40, but the image is 48×40"):
        open_source("folder", write_cvat(tmp_path / "grown", grown))
