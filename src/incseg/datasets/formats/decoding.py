"""Mask files of others: colours or numbers, and the class that each stands for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.formats.annotated import Ids, Size
from incseg.errors import InputError
from incseg.images import ClassIds, read_colours, read_mask
from incseg.protocol import BACKGROUND, IGNORE

Colour = tuple[int, int, int]
BORDER = (224, 224, 192)  # how VOC paints the pixels around objects that belong to no class


@dataclass(frozen=True)
class ByColour:
    """Masks in colours, with or without a palette; ``ids`` has the class of each, from the file ``where``."""

    ids: Mapping[Colour, int]
    where: Path

    def paint(self, mask: Path, size: Size, blank: int) -> Ids:
        """The mask; a colour that no class has is refused."""
        pixels = read_colours(mask).astype(np.int32)
        _require_mask_size(f"the mask {mask}", pixels.shape[:2], size)
        packed, places = np.unique(_packed(pixels), return_inverse=True)
        known = {(red << 16) + (green << 8) + blue: id_ for (red, green, blue), id_ in self.ids.items()}
        known.setdefault(_packed(np.array(BORDER)).item(), IGNORE)
        for value, count in zip(packed.tolist(), np.bincount(places.ravel()).tolist(), strict=True):
            if value not in known:
                colour = (value >> 16, value >> 8 & 255, value & 255)
                hint = " JPEG smears colours: save masks as PNG." if mask.suffix.lower() in (".jpg", ".jpeg") else ""
                raise InputError(
                    f"{count} pixels of the mask {mask} have the colour {colour}, which {self.where} does not "
                    f"name.{hint}"
                )
        table = np.array([known[value] for value in packed.tolist()], np.uint8)
        return _with_blank(table[places].reshape(pixels.shape[:2]), blank)


@dataclass(frozen=True)
class ByValue:
    """Masks whose pixels are numbers; ``ids`` has the class of each, from the file ``where``; 255 is ignored."""

    ids: Mapping[int, int]
    where: Path

    def paint(self, mask: Path, size: Size, blank: int) -> Ids:
        """The mask of a file."""
        return self.decoded(read_mask(mask), f"the mask {mask}", size, blank)

    def decoded(self, values: ClassIds, where: str, size: Size, blank: int) -> Ids:
        """The classes of (H, W) numbers; one that no class has is refused."""
        _require_mask_size(where, values.shape, size)
        known = {IGNORE: IGNORE, **self.ids}
        found = np.unique(values).tolist()
        unknown = [value for value in found if value not in known]
        if unknown:
            raise InputError(
                f"{where} holds the value {unknown[0]}, which {self.where} does not name; it names "
                f"{min(self.ids)} to {max(self.ids)}."
            )
        table = np.zeros(max(found) + 1, np.uint8)
        table[found] = [known[value] for value in found]
        return _with_blank(table[values], blank)


def _packed(pixels: NDArray[np.int32]) -> NDArray[np.int32]:
    return (pixels[..., 0] << 16) + (pixels[..., 1] << 8) + pixels[..., 2]


def _require_mask_size(where: str, shape: tuple[int, ...], size: Size) -> None:
    if shape[::-1] != size:
        raise InputError(
            f"{where} is {shape[1]}×{shape[0]} but its image is {size[0]}×{size[1]}: they must have the same size."
        )


def _with_blank(ids: Ids, blank: int) -> Ids:
    """In a mask, what belongs to no class is background; it counts as told."""
    ids[ids == BACKGROUND] = blank
    return ids
