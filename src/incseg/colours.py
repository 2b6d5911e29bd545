"""The colours in which classes are drawn: one palette for photographs, and Pascal VOC's for Pascal VOC."""

from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Colours = Literal["distinct", "voc"]
"""The name of a palette; saved in a model, so that all who draw its classes draw them alike."""
DISTINCT: Colours = "distinct"

IDS = 256
UNLABELLED = (224, 224, 192)  # of the id 255, which is no class
LEVELS = 16  # of red, green and blue that are considered
LIGHTNESS, CHROMA = (0.5, 0.92), 0.09  # what stays visible half-transparent on a photograph, which is dark or greyish
# Björn Ottosson, "A perceptual color space for image processing", 2020: in Oklab, distance is difference to the eye.
TO_CONES = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                     [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
TO_LAB = np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                   [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip


@cache
def palette(kind: Colours = DISTINCT) -> NDArray[np.uint8]:
    """(256, 3) RGB by class id: background black, 255 (ignored) pale; not to be written to."""
    colours = _voc() if kind == "voc" else _distinct()
    colours[IDS - 1] = UNLABELLED
    colours.flags.writeable = False
    return colours


def _voc() -> NDArray[np.uint8]:
    """The bits of the id, lowest first, are dealt to the high bits of red, green and blue in turn."""
    colours = np.zeros((IDS, 3), np.uint8)
    ids = np.arange(IDS)
    for level in range(8):
        for channel in range(3):
            colours[:, channel] |= ((ids >> (3 * level + channel) & 1) << (7 - level)).astype(np.uint8)
    return colours


def _distinct() -> NDArray[np.uint8]:
    """Each colour is the one farthest from all before it, and from black, grey, white and the unlabelled."""
    steps = np.linspace(0, 255, LEVELS).round().astype(np.uint8)
    candidates = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = oklab(candidates)
    vivid = (lab[:, 0] > LIGHTNESS[0]) & (lab[:, 0] < LIGHTNESS[1]) & (np.hypot(lab[:, 1], lab[:, 2]) > CHROMA)
    candidates, lab = candidates[vivid], lab[vivid]
    taken = oklab(np.array([(0, 0, 0), (128, 128, 128), (255, 255, 255), UNLABELLED], np.uint8))
    nearest = np.linalg.norm(lab[:, None] - taken, axis=-1).min(axis=1)
    colours = np.zeros((IDS, 3), np.uint8)
    for index in range(1, IDS):
        chosen = int(nearest.round(6).argmax())  # rounded, so that every machine finds the same among equals
        colours[index] = candidates[chosen]
        nearest = np.minimum(nearest, np.linalg.norm(lab - lab[chosen], axis=-1))
    return colours


def oklab(colours: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(…, 3) sRGB as lightness and two axes of hue."""
    values = colours / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    lab: NDArray[np.float64] = np.cbrt(linear @ TO_CONES.T) @ TO_LAB.T
    return lab
