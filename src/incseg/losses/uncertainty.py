"""How unsure a network is: the entropy of its answer, and its median per class."""

import math

import torch
from torch import Tensor

BINS = 100


def normalised_entropy(probs: Tensor) -> Tensor:
    """``−Σ_c p_c ln p_c / ln C`` per pixel, from 0 (certain) to 1 (no idea).

    Args:
        probs: (B, C, …) probabilities.

    Returns:
        (B, …); 0 for a single class.
    """
    entropy: Tensor = torch.special.entr(probs).sum(dim=1)
    return entropy / max(math.log(probs.shape[1]), 1e-12)


def class_histogram(values: Tensor, classes: Tensor, *, num_classes: int) -> Tensor:
    """Count values in [0, 1] by class and by bin of width 1/100. Counts of several batches or processes add up.

    Args:
        values: (P,) float.
        classes: (P,) int64 in 0…C−1.
        num_classes: C.

    Returns:
        (C, 100) int64.
    """
    bins = (values * BINS).long().clamp(0, BINS - 1)
    return torch.bincount(classes * BINS + bins, minlength=num_classes * BINS).reshape(num_classes, BINS)


def median_of_histogram(counts: Tensor) -> Tensor:
    """The upper edge of the bin in which half of a class' pixels are reached; 0 for a class without pixels.

    Args:
        counts: (C, 100) int64.

    Returns:
        (C,) float32 in [0, 1].
    """
    total = counts.sum(dim=1, keepdim=True)
    reached = counts.cumsum(dim=1) * 2 >= total
    edge = (reached.int().argmax(dim=1) + 1) / BINS
    return torch.where(total[:, 0] > 0, edge, 0.0)
