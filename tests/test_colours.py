"""The palettes, measured in CIELAB, which is not the space in which they are made."""

import numpy as np
import pytest
from numpy.typing import NDArray

from incseg.colours import Colours, palette
from incseg.datasets import dataset_entry


def cielab(colours: NDArray[np.uint8]) -> NDArray[np.float64]:
    """CIE 1976 L*a*b* of sRGB under D65."""
    values = colours / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (linear @ to_xyz.T / to_xyz.sum(axis=1)).T
    fx, fy, fz = (np.where(v > (6 / 29) ** 3, np.cbrt(v), v / (3 * (6 / 29) ** 2) + 4 / 29) for v in (x, y, z))
    return np.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], axis=-1)


def nearest_pair(kind: Colours, classes: int) -> float:
    """The distance of the two most similar colours among the first classes."""
    colours = cielab(palette(kind)[1 : classes + 1])
    distances = np.linalg.norm(colours[:, None] - colours, axis=-1)
    return float(distances[~np.eye(classes, dtype=bool)].min())


@pytest.mark.parametrize(("classes", "least"), [(10, 30), (20, 20), (50, 10), (254, 5)])
def test_colours_are_farther_apart_than_vocs(classes: int, least: float) -> None:
    assert nearest_pair("distinct", classes) > max(least, 1.9 * nearest_pair("voc", classes))


def test_neighbouring_ids_differ_plainly() -> None:
    assert np.linalg.norm(np.diff(cielab(palette()[1:255]), axis=0), axis=-1).min() > 12


def test_every_class_is_bright_and_colourful_enough_for_a_photograph() -> None:
    lightness, a, b = cielab(palette()[1:255]).T
    assert lightness.min() > 30
    assert np.hypot(a, b).min() > 15
    vocs = cielab(palette("voc")[1:21])[:, 0]
    assert vocs.min() < 13, "the reason for a palette of our own"


def test_background_is_black_and_what_is_ignored_is_pale_in_both() -> None:
    for colours in (palette(), palette("voc")):
        assert colours.shape == (256, 3)
        assert colours[0].tolist() == [0, 0, 0]
        assert colours[255].tolist() == [224, 224, 192]
        assert len(np.unique(colours, axis=0)) == 256
        with pytest.raises(ValueError, match="read-only"):
            colours[1] = 0


def test_vocs_palette_is_as_published_and_vocs_alone() -> None:
    assert palette("voc")[[1, 2, 3, 8, 20]].tolist() == [
        [128, 0, 0],
        [0, 128, 0],
        [128, 128, 0],
        [64, 0, 0],
        [0, 64, 128],
    ]
    assert dataset_entry("voc").colours == "voc"
    assert dataset_entry("folder").colours == "distinct"


def test_the_colours_of_a_class_never_change() -> None:
    """Pictures of one model, made on two machines or by two versions, show a class alike."""
    assert palette()[1:9].tolist() == [
        [255, 0, 255], [85, 34, 255], [0, 204, 0], [255, 0, 0], [170, 17, 136], [0, 187, 255], [255, 136, 187],
        [221, 153, 0],
    ]  # fmt: skip
