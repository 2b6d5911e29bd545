"""Colours for class ids, the same everywhere: VOC's palette, in which neighbours differ most."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def palette() -> NDArray[np.uint8]:
    """(256, 3) RGB: the bits of the id, lowest first, are dealt to the high bits of red, green and blue in turn."""
    colours = np.zeros((256, 3), np.uint8)
    ids = np.arange(256)
    for level in range(8):
        for channel in range(3):
            colours[:, channel] |= ((ids >> (3 * level + channel) & 1) << (7 - level)).astype(np.uint8)
    colours[255] = (224, 224, 192)
    return colours


def index_image(ids: NDArray[np.uint8]) -> Image.Image:
    """(H, W) ids as a PNG-ready index image with the palette inside."""
    picture = Image.fromarray(ids, mode="P")
    picture.putpalette(palette().ravel().tolist())
    return picture
