"""Which pixels of a batch a loss uses: the coarse grid, and whether their class is old, new or background."""

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.batch import View
from incseg.errors import InputError
from incseg.protocol import BACKGROUND, IGNORE, Step


def grid_size(view: View, stride: int) -> tuple[int, int]:
    """One cell per ``stride`` pixels of the image, or the embedding's own size where that is coarser."""
    height, width = (-(-side // stride) for side in view.labels.shape[-2:])
    own_height, own_width = view.student.embedding.shape[-2:]
    return min(height, own_height), min(width, own_width)


def labels_on_grid(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, H, W) labels at the centres of the cells; class ids are never interpolated."""
    return F.interpolate(labels[:, None].float(), size=size, mode="nearest-exact")[:, 0].long()


def pixels_on_grid(embedding: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, D, h, w) → (B·h'·w', D), averaged within the cells."""
    return F.adaptive_avg_pool2d(embedding, size).movedim(1, -1).flatten(0, 2)


REGIONS = ("old", "new", "background")
OUTSIDE = -1  # the label of a pixel that is not used


def parse_regions(text: str) -> tuple[str, ...]:
    """``"old+new"`` → ``("old", "new")``."""
    regions = tuple(text.split("+"))
    if not set(regions) <= set(REGIONS):
        raise InputError(f"'{text}' does not name regions of an image: write a sum of {', '.join(REGIONS)}.")
    return regions


def keep_regions(labels: Tensor, regions: str, step: Step) -> Tensor:
    """The labels of pixels in one of the regions, and −1 for all others; ignored pixels are in none.

    Args:
        labels: (…) int64 channels.
        regions: a sum of ``old``, ``new`` and ``background``.
        step: which classes are old and new.
    """
    is_background, is_ignored = labels == BACKGROUND, labels == IGNORE
    is_old = (labels < step.old_classes) & ~is_background
    members = {"old": is_old, "new": ~(is_old | is_background | is_ignored), "background": is_background}
    chosen = torch.stack([members[name] for name in parse_regions(regions)]).any(dim=0)
    return torch.where(chosen, labels, OUTSIDE)
