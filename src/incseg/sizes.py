"""How large images are to the network: those beyond a longest side are reduced, and sizes far from training are told.

One rule for training, scoring and prediction. Images are averaged, class ids never are: they take the nearest pixel,
counted from the centres ("nearest-exact"), since counting from the corners would shift a mask by half a pixel.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # PyTorch takes seconds: sizes that are not possible are refused without it
    import torch
    from torch import Tensor

Size = tuple[int, int]  # height and width
STRIDE = 32  # encoders halve the image five times; sizes are padded to a multiple
TILE, OVERLAP = 1024, 256  # of what is segmented at once of a larger image
FAR = 3  # times larger or smaller than in training: from here on a network no longer knows what it sees


def reduced_size(size: Size, longest_side: int | None) -> Size:
    """The size of an image whose longer side is at most ``longest_side``; nothing is enlarged.

    >>> reduced_size((3000, 4000), 1024), reduced_size((300, 400), 1024)
    ((768, 1024), (300, 400))
    """
    height, width = size
    if longest_side is None or max(size) <= longest_side:
        return size
    scale = longest_side / max(size)
    return max(1, round(height * scale)), max(1, round(width * scale))


def resize_images(images: "Tensor", size: Size) -> "Tensor":
    """(B, 3, H, W) uint8 at another size, on the CPU; averaged where it is smaller."""
    if images.shape[-2:] == size:
        return images
    from torch.nn import functional as F  # noqa: PLC0415

    return F.interpolate(images.contiguous(), size=size, mode="bilinear", antialias=True)


def resize_nearest(values: "Tensor", size: Size) -> "Tensor":
    """(…, H, W) of any type, as class ids, at another size; each pixel takes the value at its centre."""
    if values.shape[-2:] == size:
        return values
    sides = zip(size, values.shape[-2:], strict=True)
    rows, columns = (_centres(new, old, values.device) for new, old in sides)
    positions = (rows[:, None] * values.shape[-1] + columns).flatten().int()  # one index is five times faster than two
    return values.flatten(-2).index_select(-1, positions).view(*values.shape[:-2], *size)


@lru_cache(maxsize=1024)  # crops of small images have few sizes, and making this takes as long as using it
def _centres(new: int, old: int, device: "torch.device") -> "Tensor":
    """(new,) on a line of ``old`` pixels, those at the centres of ``new``."""
    import torch  # noqa: PLC0415

    return (2 * torch.arange(new, device=device) + 1) * old // (2 * new)


def far_from_training(side: int, seen_side: int | None, remedy: str) -> str:
    """What to say of images whose longer side is ``side``; empty unless they are far from those of training.

    Args:
        side: in pixels, as the network is to see it.
        seen_side: of a typical training image as the network saw it in its crops; None: not known.
        remedy: what reduces images, with {} for the side of training.
    """
    if seen_side is None or seen_side / FAR < side < seen_side * FAR:
        return ""
    factor = max(side, seen_side) / min(side, seen_side)
    larger, advice = side > seen_side, f"reduce large images {remedy.format(seen_side)}"
    return (
        f"{side} pixels on the longer side, and the training crops showed whole images at about {seen_side}: things "
        f"are {factor:.1f} times {'larger' if larger else 'smaller'} than in training and may not be recognised; "
        f"{advice if larger else 'use images with more pixels, or enlarge them before'}."
    )
