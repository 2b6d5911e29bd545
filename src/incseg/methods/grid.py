"""The coarse grid on which pixels are contrasted."""

from torch import Tensor
from torch.nn import functional as F

from incseg.batch import View


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
