"""A split whose large images are reduced to a longest side, together with their masks."""

from contextlib import suppress
from statistics import median

from torch import Tensor

from incseg.datasets.source import Split
from incseg.errors import InputError
from incseg.sizes import Size, reduced_size, resize_images, resize_nearest


class ReducedSplit(Split):
    """Images and masks of another split, at most ``longest_side`` high and wide."""

    def __init__(self, split: Split, longest_side: int):
        self.ids, self.split, self.longest_side = split.ids, split, longest_side

    def shape(self, index: int) -> Size:
        """After the reduction."""
        return reduced_size(self.split.shape(index), self.longest_side)

    def image(self, index: int) -> Tensor:
        """(3, H, W) uint8 RGB, averaged."""
        image = self.split.image(index)
        return resize_images(image[None], reduced_size((image.shape[-2], image.shape[-1]), self.longest_side))[0]

    def mask(self, index: int) -> Tensor:
        """(H, W) class ids at the centres of the new pixels."""
        mask = self.split.mask(index)
        return resize_nearest(mask, reduced_size((mask.shape[0], mask.shape[1]), self.longest_side))

    def where(self, index: int) -> str:
        """As the split itself says."""
        return self.split.where(index)


def reduced(split: Split, longest_side: int | None) -> Split:
    """The split with its large images reduced, or the split itself where nothing is to be."""
    return split if longest_side is None else ReducedSplit(split, longest_side)


def usual_side(split: Split, longest_side: int | None) -> int:
    """The longer side of a typical image of the split after the reduction; 0 where none can be read."""
    shapes = usual_shapes(reduced(split, longest_side))
    return round(median(map(max, shapes))) if shapes else 0


def usual_shapes(split: Split, most: int = 32) -> list[Size]:
    """Heights and widths of some images, spread evenly over the split, without those that cannot be read."""
    shapes = []
    for index in range(0, len(split), max(1, len(split) // most)):
        with suppress(InputError):
            shapes.append(split.shape(index))
    return shapes
