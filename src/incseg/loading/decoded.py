"""Images and masks decoded once and kept as bytes, in RAM or on a device."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incseg.datasets.scan import in_threads
from incseg.datasets.source import ReportProgress, Split
from incseg.errors import InputError
from incseg.sizes import Size

BYTES = 4  # of a pixel: red, green, blue and the id in the mask; one word, so that a device reads it at once


class Place(NamedTuple):
    """Where an image lies in the buffer: its first pixel, and its size."""

    offset: int
    height: int
    width: int


@dataclass(frozen=True)
class Measured:
    """The sizes of images as their headers tell them, before any is decoded; a sentence where that is impossible."""

    split: Split
    sizes: Mapping[int, Size | str]

    @classmethod
    def of(cls, split: Split, indices: Iterable[int]) -> "Measured":
        """Some images of a split, by their index."""
        chosen = sorted(indices)
        return cls(split, dict(zip(chosen, in_threads(lambda at: _size(split, chosen[at]), len(chosen)), strict=True)))

    @property
    def bytes(self) -> int:
        """What all of them take in memory."""
        return BYTES * sum(height * width for height, width in self._known.values())

    @property
    def longest_side(self) -> int:
        """Of any image."""
        return max((max(size) for size in self._known.values()), default=1)

    @property
    def _known(self) -> dict[int, Size]:
        return {index: size for index, size in self.sizes.items() if not isinstance(size, str)}

    def decoded(self, device: torch.device, report_progress: ReportProgress | None = None) -> "DecodedImages":
        """Read all of them, several at a time; on the way to another device they are in RAM for a while."""
        known, offset = self._known, 0
        places = dict[int, Place]()
        for index, (height, width) in known.items():
            places[index] = Place(offset, height, width)
            offset += height * width
        pixels, chosen = np.empty((offset, BYTES), np.uint8), list(known)
        work = in_threads(
            lambda at: _read(self.split, chosen[at], places[chosen[at]], pixels), len(known), report_progress
        )
        found = dict(zip(chosen, work, strict=True))
        unreadable = {index: text for index, text in [*self.sizes.items(), *found.items()] if isinstance(text, str)}
        return DecodedImages(torch.from_numpy(pixels).to(device), Layout(places, unreadable))


def _size(split: Split, index: int) -> Size | str:
    try:
        return split.shape(index)
    except InputError as error:
        return str(error)


def _read(split: Split, index: int, place: Place, pixels: NDArray[np.uint8]) -> str | None:
    """Decode an image and its mask into their place; returns a sentence where they cannot be read.

    By NumPy: in several threads, PyTorch's own threads would hinder each other.
    """
    try:
        image, mask = split.image(index).movedim(0, -1), split.mask(index)
    except InputError as error:
        return str(error)
    offset, height, width = place
    if not image.shape[:2] == mask.shape == (height, width):
        return f"{split.where(index)}: the image and its mask differ in size, or have changed just now."
    mine = pixels[offset : offset + height * width].reshape(height, width, BYTES)
    mine[..., :3], mine[..., 3] = image.numpy(), mask.numpy()
    return None


@dataclass(frozen=True)
class Layout:
    """Where images lie in a buffer, by their index in the split they come from."""

    places: Mapping[int, Place]
    unreadable: Mapping[int, str]
    """A sentence for each image that could not be read."""

    def place(self, index: int) -> Place:
        """Where an image lies; one that could not be read is refused, as when reading it."""
        if index in self.unreadable:
            raise InputError(self.unreadable[index])
        return self.places[index]

    @property
    def largest(self) -> Size:
        """The greatest height and the greatest width."""
        heights, widths = zip(*((place.height, place.width) for place in self.places.values()), strict=True)
        return max(heights), max(widths)


@dataclass(frozen=True)
class DecodedImages:
    """Images side by side in one buffer."""

    pixels: Tensor
    """(P, 4) uint8: red, green, blue, id."""
    layout: Layout


class KeptSplit(Split):
    """A split whose images were decoded before."""

    def __init__(self, split: Split, decoded: DecodedImages):
        self.ids, self.split, self.decoded = split.ids, split, decoded

    def image(self, index: int) -> Tensor:
        """(3, H, W) uint8 RGB."""
        return self._pixels(index)[..., :3].movedim(-1, 0)

    def mask(self, index: int) -> Tensor:
        """(H, W) uint8 class ids."""
        return self._pixels(index)[..., 3]

    def shape(self, index: int) -> Size:
        """As it was decoded."""
        return self.decoded.layout.place(index)[1:]

    def where(self, index: int) -> str:
        """As the split itself says."""
        return self.split.where(index)

    def _pixels(self, index: int) -> Tensor:
        offset, height, width = self.decoded.layout.place(index)
        return self.decoded.pixels[offset : offset + height * width].view(height, width, BYTES)
