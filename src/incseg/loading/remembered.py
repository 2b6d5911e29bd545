"""Validation images that are read once and scored after every step."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from incseg.datasets.scan import in_threads
from incseg.datasets.source import Split
from incseg.errors import InputError
from incseg.loading.batches import ScoredImages
from incseg.loading.decoded import BYTES
from incseg.loading.transforms import CentreCrop
from incseg.sizes import Size

MOST_BYTES = 1_600_000_000  # of all images together, enough for VOC's crops of 512; others are read for every step


class RememberedSplit(Split):
    """A split whose images are kept in memory, cut as they are scored, with the ids of their masks."""

    def __init__(self, split: Split, crop: CentreCrop | None):
        self.ids, self.split, self.crop = split.ids, split, crop
        self._kept: dict[int, tuple[Tensor, Tensor] | str] = {}

    def read(self, indices: Sequence[int]) -> None:
        """Read those of these images that are not there yet, several at a time."""
        missing = [index for index in indices if index not in self._kept]
        found = in_threads(lambda at: self._read(missing[at]), len(missing))
        self._kept |= dict(zip(missing, found, strict=True))

    def image(self, index: int) -> Tensor:
        """(3, H, W) uint8 RGB."""
        return self._pixels(index)[0]

    def mask(self, index: int) -> Tensor:
        """(H, W) uint8 class ids."""
        return self._pixels(index)[1]

    def shape(self, index: int) -> Size:
        """As it is scored."""
        height, width = self.mask(index).shape
        return height, width

    def where(self, index: int) -> str:
        """As the split itself says."""
        return self.split.where(index)

    def _pixels(self, index: int) -> tuple[Tensor, Tensor]:
        if index not in self._kept:
            self._kept[index] = self._read(index)
        found = self._kept[index]
        if isinstance(found, str):
            raise InputError(found)
        return found

    def _read(self, index: int) -> tuple[Tensor, Tensor] | str:
        """An image and its mask; a sentence where they cannot be read."""
        try:
            image, mask = self.split.image(index), self.split.mask(index)
        except InputError as error:
            return str(error)
        if self.crop is not None:
            image, mask = self.crop(image, mask)
        return image.contiguous(), mask.to(torch.uint8)


class ScoredMemory:
    """Keeps the images of every collection that is scored, as long as they are few."""

    def __init__(self) -> None:
        self._splits: dict[object, RememberedSplit] = {}
        self._free: float = MOST_BYTES

    def kept(self, images: ScoredImages, places: Sequence[int]) -> ScoredImages | None:
        """The same images from memory, once those at these places are there; None where all would be too large."""
        # Every step makes its collections anew, but their split is one object, which is kept alive here.
        key = (id(images.split), images.crop)
        if key not in self._splits:
            size = _bytes(images)
            if size > self._free:
                return None
            self._free -= size
            self._splits[key] = RememberedSplit(images.split, images.crop)
        self._splits[key].read([images.indices[place] for place in places])
        return replace(images, split=self._splits[key], crop=None)


def _bytes(images: ScoredImages) -> float:
    """What all images of their split take in memory, about."""
    shapes = images.usual_shapes()
    return BYTES * len(images.split) * sum(height * width for height, width in shapes) / max(1, len(shapes))
