"""Images and masks that a program holds in memory, or names one by one."""

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incseg.datasets import Split
from incseg.errors import InputError
from incseg.images import ClassIds, ImageLike, Pixels, read_image, read_mask

MaskLike = str | Path | NDArray[np.integer[Any]]


class GivenImages(Split):
    """Images and masks in memory."""

    def __init__(self, images: Sequence[Pixels], masks: Sequence[ClassIds]):
        self.ids = [str(index) for index in range(len(images))]
        self._images, self._masks = images, masks

    @classmethod
    def read(cls, images: Sequence[ImageLike], masks: Sequence[MaskLike]) -> "GivenImages":
        """From files, Pillow images or arrays; each mask must have the size of its image."""
        for what, given in (("images", images), ("masks", masks)):
            if isinstance(given, (str, Path)) or not isinstance(given, Iterable):
                raise InputError(f"{what} must be a list, also of one: not {type(given).__name__}.")
        images, masks = list(images), list(masks)  # a generator has no length
        if len(images) != len(masks) or not images:
            raise InputError(f"every image needs one mask, and there are {len(images)} images and {len(masks)} masks.")
        pixels = [read_image(image) for image in images]
        return cls(pixels, [_mask(mask, pixels[index].shape[:2], index) for index, mask in enumerate(masks)])

    @property
    def checksum(self) -> str:
        """That of all pixels and ids, eight letters: it tells images from others."""
        found = 0
        for array in (*self._images, *self._masks):
            found = zlib.crc32(array.tobytes(), found)
        return f"{found:08x}"

    def image(self, index: int) -> Tensor:
        """(3, H, W) uint8 RGB."""
        return torch.tensor(self._images[index]).permute(2, 0, 1)

    def mask(self, index: int) -> Tensor:
        """(H, W) ids, in the order of the names."""
        return torch.tensor(self._masks[index])

    def where(self, index: int) -> str:
        """Its number, from 0 as in Python."""
        return f"masks[{index}]"


def _mask(mask: MaskLike, size: tuple[int, ...], index: int) -> ClassIds:
    """The ids of a mask, which must be those of pixels of an image of that size."""
    ids = read_mask(Path(mask)) if isinstance(mask, (str, Path)) else np.asarray(mask)
    if ids.ndim != 2 or ids.dtype.kind not in "iub":
        raise InputError(f"masks[{index}] must be an array (H, W) of whole numbers, not {ids.shape} {ids.dtype}.")
    if ids.shape != size:
        raise InputError(f"masks[{index}] is {ids.shape[1]}×{ids.shape[0]} but its image is {size[1]}×{size[0]}.")
    return ids.astype(np.int32)
