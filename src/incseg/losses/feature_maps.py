"""Distances of feature maps: pooled in windows and over channels, and weighted by pixel."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def widened(maps: Tensor) -> Tensor:
    """In float32 or wider: squares of shorter numbers lose what is to be compared."""
    return maps.to(torch.promote_types(maps.dtype, torch.float32))


def mean_norm(gap: Tensor) -> Tensor:
    """``1/B Σ_b ‖x_b‖₂`` of (B, …) float; a scalar, 0 for an empty batch."""
    return mean_root(gap.square().flatten(1).sum(dim=1))


def mean_root(square: Tensor) -> Tensor:
    """``1/B Σ_b √q_b`` of (B,) squares; 0 for an empty batch."""
    # The norm has no gradient at 0; where the maps agree it is taken as 0.
    norm = torch.where(square > 0, square.where(square > 0, 1).sqrt(), 0)
    return norm.sum() / max(len(norm), 1)


WINDOWS = (4, 8, 12, 16, 20, 24)
NEIGHBOURS = 3  # channels that are pooled together


def spatial_cube_distance(student: Tensor, teacher: Tensor, windows: Sequence[int] = WINDOWS) -> Tensor:
    """``1/|W| Σ_k 1/B Σ_b ‖A_k(f_b²) − A_k(t_b²)‖₂`` with A_k the means in k×k windows at every place (RCIL).

    Beyond the map there are k/2 zeros on each side, which count in the means, as in RCIL's code.

    Args:
        student: (B, D, h, w) float.
        teacher: the same shape; no gradient flows into it.
        windows: W, even sides of windows; they may exceed the map.

    Returns:
        A scalar; 0 where the maps agree (with zero gradient), and for an empty batch.
    """
    gap = widened(student).square() - widened(teacher.detach()).square()  # means are linear
    return torch.stack([mean_norm(_window_means(gap, k)) for k in windows]).mean()


def _window_means(maps: Tensor, side: int) -> Tensor:
    """By columns and then by rows: 2k additions for a mean of k² values."""
    columns = F.avg_pool2d(maps, (side, 1), stride=1, padding=(side // 2, 0))
    return F.avg_pool2d(columns, (1, side), stride=1, padding=(0, side // 2))


def channel_cube_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """``1/B Σ_b ‖A(f_b²) − A(t_b²)‖₂`` with A the mean of every channel and its two neighbours (RCIL).

    Beyond the first and the last channel there is a zero, which counts in the mean, as in RCIL's code.

    Args:
        student: (B, D, h, w) float.
        teacher: the same shape; no gradient flows into it.

    Returns:
        A scalar; 0 where the maps agree (with zero gradient), and for an empty batch.
    """
    gap = widened(student).square() - widened(teacher.detach()).square()
    pooled = F.avg_pool2d(gap.flatten(2), (NEIGHBOURS, 1), stride=1, padding=(NEIGHBOURS // 2, 0))
    return mean_norm(pooled)


def weighted_feature_distillation(
    student: Tensor, teacher: Tensor, weights: Tensor, count: Tensor | None = None
) -> Tensor:
    """``Σ_p w_p ‖f_p − t_p‖² / (D · |{p: w_p > 0}|)`` (MBS): a mean over the pixels that count.

    Args:
        student: f, (B, D, h, w) float.
        teacher: t, the same shape; no gradient flows into it.
        weights: w, (B, h, w) float, at least 0.
        count: the pixels that count in the whole batch where this is only a part of it: the losses of the parts then
            add up to that of the whole.

    Returns:
        A scalar; 0 (with zero gradient) when no pixel counts.
    """
    counted = (weights > 0).sum() if count is None else count
    square = (student - teacher.detach()).square().sum(dim=1)
    return (weights * square).sum() / (student.shape[1] * counted).clamp_min(1)
