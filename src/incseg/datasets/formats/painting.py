"""Shapes on a mask: each is painted over those before it. A pixel belongs to a shape if its centre lies inside."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.formats.annotated import Ids, Size

Point = tuple[float, float]
CORNERS = 120  # of the polygon that stands for an ellipse; it then differs from one by less than 1 / 1000 of its size


class Shape(Protocol):
    """Anything that can be painted."""

    def paint(self, ids: Ids) -> None:
        """Paint onto a mask, over what is there."""


@dataclass(frozen=True)
class Polygon:
    """An outline of at least three points in pixels, where (0, 0) is the corner of the first pixel."""

    label: int
    points: Sequence[Point]

    @classmethod
    def rectangle(cls, label: int, one: Point, other: Point) -> "Polygon":
        """Between two opposite corners."""
        return cls(label, [one, (other[0], one[1]), other, (one[0], other[1])])

    @classmethod
    def ellipse(cls, label: int, centre: Point, radii: Point) -> "Polygon":
        """Upright, around a centre."""
        angles = (2 * math.pi * corner / CORNERS for corner in range(CORNERS))
        return cls(label, [(centre[0] + radii[0] * math.cos(a), centre[1] + radii[1] * math.sin(a)) for a in angles])

    def paint(self, ids: Ids) -> None:
        """Fill it; where it crosses itself, by the even-odd rule."""
        x, y = np.array(self.points, dtype=np.float64).T
        left, right = (int(edge) for edge in np.clip([np.floor(x.min()), np.ceil(x.max())], 0, ids.shape[1]))
        top, bottom = (int(edge) for edge in np.clip([np.floor(y.min()), np.ceil(y.max())], 0, ids.shape[0]))
        inside = _filled(x - left, y - top, (right - left, bottom - top))
        ids[top:bottom, left:right][inside] = self.label

    def area(self) -> float:
        """In square pixels, by the shoelace formula."""
        x, y = np.array(self.points, dtype=np.float64).T
        return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


@dataclass(frozen=True)
class Bitmap:
    """(h, w) bool, its upper left pixel at ``left``, ``top``; what lies outside of the image is cut off."""

    label: int
    left: int
    top: int
    pixels: NDArray[np.bool_]

    def paint(self, ids: Ids) -> None:
        """Paint the pixels that are true."""
        pixels = self.pixels[max(0, -self.top) :, max(0, -self.left) :]
        there = ids[max(0, self.top) :, max(0, self.left) :][: pixels.shape[0], : pixels.shape[1]]
        there[pixels[: there.shape[0], : there.shape[1]]] = self.label


def painted(shapes: Iterable[Shape], size: Size, blank: int) -> Ids:
    """(H, W) ids: the shapes in order on a mask that is ``blank`` everywhere."""
    ids = np.full((size[1], size[0]), blank, np.uint8)
    for shape in shapes:
        shape.paint(ids)
    return ids


def _filled(x: NDArray[np.float64], y: NDArray[np.float64], size: Size) -> NDArray[np.bool_]:
    """(H, W): which pixels have their centre inside the outline.

    Every edge crosses the rows between its ends once. In each row, a pixel is inside if an odd number of crossings lie
    to its left.
    """
    width, height = size
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    first = np.clip(np.ceil(np.minimum(y, next_y) - 0.5), 0, height).astype(np.int64)
    last = np.clip(np.ceil(np.maximum(y, next_y) - 0.5), 0, height).astype(np.int64)
    crossed = last - first
    edge = np.repeat(np.arange(len(x)), crossed)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(crossed) - crossed, crossed) + first[edge]
    at = x[edge] + (row + 0.5 - y[edge]) * (next_x - x)[edge] / (next_y - y)[edge]
    column = np.clip(np.ceil(at - 0.5), 0, width).astype(np.int64)
    crossings = np.bincount(row * (width + 1) + column, minlength=height * (width + 1)).reshape(height, width + 1)
    inside: NDArray[np.bool_] = np.cumsum(crossings, axis=1)[:, :width] % 2 == 1
    return inside
