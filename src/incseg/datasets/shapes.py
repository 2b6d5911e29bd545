"""An embedded dataset: patterned shapes on cluttered backgrounds, drawn on demand, the same for everyone.

Every image shows several objects of several classes, so that at any step the unlabelled background contains old and
future classes, which is what makes incremental segmentation hard.
"""

import colorsys
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.file_split import as_tensor
from incseg.datasets.source import Source, Split, dataset
from incseg.errors import InputError
from incseg.protocol import IGNORE
from incseg.seeding import seed_from

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]
Region = NDArray[np.bool_]
Drawing = Callable[[Array, Array], Region]  # (x, y) in the object's own frame, at unit scale -> where

SIZE = 96
TRAIN_IMAGES, VAL_IMAGES = 640, 128


def _radius(x: Array, y: Array) -> Array:
    return np.hypot(x, y)


def _flower(x: Array, y: Array) -> Region:
    petals: Region = np.hypot(x, y) < 0.68 + 0.32 * np.cos(5 * np.arctan2(y, x))
    return petals


def _spokes(x: Array, y: Array) -> Region:
    spokes: Region = np.sin(10 * np.arctan2(y, x)) > 0
    return spokes


# name -> (outline: true inside the object, pattern: true where the second colour goes, hue the class tends to)
SHAPES: dict[str, tuple[Drawing, Drawing, float]] = {
    "disc": (lambda x, y: _radius(x, y) < 0.9, lambda x, y: np.sin(14 * _radius(x, y)) > 0, 0.00),
    "square": (lambda x, y: np.maximum(abs(x), abs(y)) < 0.8, lambda x, y: np.sin(9 * x) * np.sin(9 * y) > 0, 0.55),
    "triangle": (lambda x, y: (y < 0.7) & (y > 1.9 * abs(x) - 0.9), lambda _, y: np.sin(13 * y) > 0, 0.30),
    "cross": (
        lambda x, y: (np.minimum(abs(x), abs(y)) < 0.33) & (np.maximum(abs(x), abs(y)) < 1),
        lambda x, y: np.sin(10 * (x + y)) > 0,
        0.80,
    ),
    "ring": (lambda x, y: abs(_radius(x, y) - 0.72) < 0.26, _spokes, 0.14),
    "flower": (_flower, lambda x, y: _radius(x, y) < 0.38, 0.66),
    "frame": (lambda x, y: np.maximum(abs(x), abs(y)) < 0.7, lambda x, y: np.maximum(abs(x), abs(y)) < 0.4, 0.45),
    "moon": (
        lambda x, y: (_radius(x, y) < 0.95) & (_radius(x - 0.45, y) > 0.7),
        lambda x, y: np.sin(16 * x) * np.sin(16 * y) > 0.2,
        0.92,
    ),
}
CLASSES = ("background", *SHAPES)


@dataset("shapes", f"embedded: {len(SHAPES)} kinds of patterned shapes, no files needed", tasks=("4-2", "4-4", "6-1"))
def open_shapes(root: Path | None) -> Source:
    """The embedded dataset; it takes no folder."""
    if root is not None:
        raise InputError("the dataset 'shapes' is embedded and has no folder: leave --data-root out.")
    return _source()


@cache
def _source() -> Source:
    """One source for the whole process, so that every image is drawn only once."""
    return Source("shapes", CLASSES, ShapesSplit("train", TRAIN_IMAGES), ShapesSplit("val", VAL_IMAGES))


class ShapesSplit(Split):
    """Images drawn from (split, index) alone, kept in memory once drawn."""

    def __init__(self, split: str, length: int, size: int = SIZE):
        self.split, self.size = split, size
        self.ids = [f"{split}-{index:04d}" for index in range(length)]

    @cached_property
    def _drawn(self) -> list[tuple["Tensor", "Tensor"]]:
        return [draw(seed_from("shapes", self.split, index), self.size) for index in range(len(self))]

    def image(self, index: int) -> "Tensor":
        """(3, S, S) uint8 RGB."""
        return self._drawn[index][0]

    def mask(self, index: int) -> "Tensor":
        """(S, S) uint8 ids into ``CLASSES``, 255 on the outlines."""
        return self._drawn[index][1]


def pictures_of(name: str) -> Iterator["Tensor"]:
    """Endless pictures (3, S, S) of one class alone; an example of a generator for ``--recall.generator``."""
    for index in itertools.count():
        yield draw(seed_from("shapes", "pictures", name, index), only=CLASSES.index(name))[0]


def draw(seed: int, size: int = SIZE, only: int | None = None) -> tuple["Tensor", "Tensor"]:
    """One image (3, S, S) and its mask (S, S), from a seed; of all classes, or of one."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:size, 0:size] / size
    image = _background(rng, rows, columns)
    mask = np.zeros((size, size), np.uint8)
    for _ in range(rng.integers(2, 5)):
        class_id = int(rng.integers(1, len(CLASSES)))
        _draw_object(rng, image, mask, only or class_id, rows, columns)
    noisy = image + rng.normal(0, 0.03, image.shape)
    pixels = (noisy.clip(0, 1) * 255).astype(np.uint8)
    return as_tensor(pixels).permute(2, 0, 1).contiguous(), as_tensor(mask)


def _background(rng: np.random.Generator, rows: Array, columns: Array) -> Array:
    """A colour gradient with waves, and clutter of plain bars and blobs in any colour."""
    corners = rng.uniform(0.2, 0.8, (2, 2, 3))
    down, along = rows[:, :1], columns[:1]
    upper, lower = corners.transpose(0, 2, 1)[..., None, None]  # each (3, 2, 1, 1): colour, side
    left, right = ((1 - down) * upper[:, side] + down * lower[:, side] for side in (0, 1))
    waves = 0.06 * np.sin(rng.uniform(8, 30) * rows + rng.uniform(8, 30) * columns)
    image: Array = np.stack(list((1 - along) * left + along * right + waves), axis=-1)
    for _ in range(rng.integers(4, 9)):
        near, x, y = _frame(rng, rows, columns, rng.uniform(0.04, 0.16))
        inside = (abs(x) < 1) & (abs(y) < rng.uniform(0.2, 1)) if rng.random() < 0.5 else _radius(x, y) < 1
        image[near][inside] = _colour(rng, rng.random())
    return image


def _draw_object(
    rng: np.random.Generator, image: Array, mask: NDArray[np.uint8], class_id: int, rows: Array, columns: Array
) -> None:
    outline, pattern, hue = SHAPES[CLASSES[class_id]]
    near, x, y = _frame(rng, rows, columns, rng.uniform(0.14, 0.26))
    inside = outline(x, y)
    first, second = (_colour(rng, hue + rng.normal(0, 0.04)) for _ in range(2))
    image[near][inside] = np.where(pattern(x, y)[inside, None], first, 0.45 * second)
    mask[near][inside] = class_id
    mask[near][_edge(inside)] = IGNORE


def _edge(inside: Region) -> Region:
    """Pixels whose right or lower neighbour lies on the other side: a thin ignored outline, as VOC has."""
    edge = np.zeros_like(inside)
    edge[:-1] |= inside[:-1] != inside[1:]
    edge[:, :-1] |= inside[:, :-1] != inside[:, 1:]
    return edge


def _frame(
    rng: np.random.Generator, rows: Array, columns: Array, radius: float
) -> tuple[tuple[slice, slice], Array, Array]:
    """Where a randomly placed and turned object of that radius can be, and its own coordinates there."""
    centre, angle = rng.uniform(0.1, 0.9, 2), rng.uniform(0, 2 * np.pi)
    near = _around(centre[1], radius, len(rows)), _around(centre[0], radius, len(rows))
    x, y = (columns[near] - centre[0]) / radius, (rows[near] - centre[1]) / radius
    return near, np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x


def _around(centre: float, radius: float, size: int) -> slice:
    """The lines of an image that an object and its outline can reach: it lies in a square of ±1, turned."""
    reach = math.sqrt(2) * radius * size + 2
    return slice(max(0, int(centre * size - reach)), int(centre * size + reach) + 1)


def _colour(rng: np.random.Generator, hue: float) -> Array:
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, rng.uniform(0.5, 0.95), rng.uniform(0.65, 1.0)))
