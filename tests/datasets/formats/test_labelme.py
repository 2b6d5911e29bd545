import base64
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask

from exports import BOX, HEIGHT, INNER, WIDTH, flat, labelme, write_json, write_labelme, write_pictures
from incseg.datasets import open_source
from incseg.datasets.source import Source
from incseg.errors import InputError

POLYGON = {"label": "cat", "points": INNER}


def one(root: Path, shapes: list[Mapping[str, Any]], **fields: Any) -> Path:
    write_pictures(root, ["a.jpg"])
    write_json(root / "a.json", labelme("a.jpg", shapes, **fields))
    return root


def ids_of(source: Source, name: str = "a") -> NDArray[Any]:
    split = next(split for split in (source.train, source.val) if name in split.ids)
    return split.mask(list(split.ids).index(name)).numpy()


def test_later_shapes_lie_on_top_and_images_are_found_or_inside(tmp_path: Path) -> None:
    source = open_source("folder", write_labelme(tmp_path / "data"))
    assert source.classes == ("background", "box", "cat")
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    for number, outline in ((1, BOX), (2, INNER)):
        expected[mask.decode(mask.merge(mask.frPyObjects([flat(outline)], HEIGHT, WIDTH))) == 1] = number
    for name in "abc":
        assert (ids_of(source, name) == expected).all(), name
    turned = one(tmp_path / "turned", [POLYGON, {"label": "box", "points": BOX}])
    assert set(np.unique(ids_of(open_source("folder", turned)))) == {0, 1}  # the box hides the cat


def test_rectangles_circles_and_masks(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.array([[1, 0], [0, 1], [1, 1]], bool)).save(file, "PNG")
    shapes: list[Mapping[str, Any]] = [
        {"label": "a", "shape_type": "rectangle", "points": [[20, 10], [2, 4]]},
        {"label": "b", "shape_type": "circle", "points": [[36, 20], [36, 28]]},
        {
            "label": "c",
            "shape_type": "mask",
            "points": [[1, 30], [2, 32]],
            "mask": base64.b64encode(file.getvalue()).decode(),
        },
        {"label": "a", "shape_type": "point", "points": [[3, 3]]},
        {"label": "a", "points": [[3, 3], [4, 4]]},
    ]
    source = open_source("folder", one(tmp_path / "data", shapes))
    ids = ids_of(source)
    assert (ids[4:10, 2:20] == 1).all()
    assert (ids == 1).sum() == 18 * 6
    assert abs((ids == 2).sum() - math.pi * 64) < 8
    assert ids[30:33, 1:3].tolist() == [[3, 0], [0, 3], [3, 3]]
    assert any("left out: 1 shapes of the kind 'point'" in note for note in source.notes)
    assert any("left out: 1 polygons with fewer than 3 points" in note for note in source.notes)


def test_the_order_of_labels_txt_its_background_and_what_is_to_be_ignored(tmp_path: Path) -> None:
    root = one(tmp_path / "data", [{"label": "__ignore__", "points": BOX}, POLYGON])
    write_pictures(root, ["new.jpg"])
    (root / "labels.txt").write_text("__ignore__\n_background_\ndog\ncat\n")
    source = open_source("folder", root)
    assert source.classes == ("background", "dog", "cat")
    assert set(np.unique(ids_of(source))) == {0, 2, 255}
    assert "left out: 1 images without a LabelMe file (first: new.jpg)" in source.notes
    assert "pixels of the class '__ignore__' are ignored (255)" in source.notes


@pytest.mark.parametrize(
    ("shapes", "fields", "message"),
    [
        ([POLYGON], {"imageWidth": 90}, "was annotated at 90×40, but the image is 48×40"),
        ([POLYGON], {"imagePath": "gone.jpg"}, "annotates the image 'gone.jpg'"),
        ([POLYGON], {"imagePath": "gone.jpg", "imageData": "%%"}, "is not valid base64"),
        ([POLYGON], {"imagePath": "gone.jpg", "imageData": "AAAA"}, "is no picture"),
        ([{"points": INNER}], {}, "a shape of .* has no 'label'"),
        ([{"label": " ", "points": INNER}], {}, "a class without a name"),
        ([{"label": "a", "points": [[1, 2], [3, "x"], [5, 6]]}], {}, "are not pairs of numbers"),
        ([{"label": "a", "shape_type": "mask", "points": [[1, 2], [3, 4]], "mask": "AAAA"}], {}, "is not a PNG"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    shapes: list[Mapping[str, Any]], fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    root = one(tmp_path / "data", shapes, **fields)
    with pytest.raises(InputError, match=message):
        open_source("folder", root)


def test_a_broken_file_and_a_label_that_is_not_listed_are_named(tmp_path: Path) -> None:
    root = one(tmp_path / "data", [POLYGON])
    (root / "labels.txt").write_text("dog\n")
    with pytest.raises(InputError, match=r"labels\.txt does not name 'cat'"):
        open_source("folder", root)
    (root / "a.json").write_text((root / "a.json").read_text()[:-10])
    with pytest.raises(InputError, match=r"a\.json is not valid JSON"):
        open_source("folder", root)
