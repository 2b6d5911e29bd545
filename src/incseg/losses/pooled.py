"""Pooled output distillation: keep feature maps alike in strips, at several scales (PLOP)."""

from collections.abc import Sequence

import torch
from torch import Tensor

SCALES = (1, 2, 4)


def local_pod(features: Tensor, scales: Sequence[int] = SCALES) -> Tensor:
    """Width- and height-pooled activations in windows of every scale (PLOP; UCD above eq. 18).

    At scale s the map is cut into s×s windows of ⌊h/s⌋×⌊w/s⌋; in each, the mean over its width and the mean over its
    height are kept. Rows and columns left over by the division are not looked at, as in the published code.

    Args:
        features: (B, D, h, w) float.
        scales: how many windows per side; scales finer than the map are left out.

    Returns:
        (B, L) all pooled values, concatenated.
    """
    batch, channels, height, width = features.shape
    pooled = []
    for scale in scales:
        rows, columns = height // scale, width // scale
        if rows == 0 or columns == 0:
            continue
        windows = features[..., : rows * scale, : columns * scale]
        windows = windows.reshape(batch, channels, scale, rows, scale, columns)
        pooled += [windows.mean(dim=5).flatten(1), windows.mean(dim=3).flatten(1)]
    return torch.cat(pooled, dim=1)


def pod_distance(student: Tensor, teacher: Tensor, scales: Sequence[int] = SCALES) -> Tensor:
    """``1/B Σ_b ‖Φ(f_b²) − Φ(t_b²)‖₂`` with Φ = local POD, as PLOP's code has it (UCD eq. 18 squares the norm).

    The published factors belong to the norm itself, so that is what is computed.

    Args:
        student: (B, D, h, w) float.
        teacher: the same shape; no gradient flows into it.
        scales: windows per side.

    Returns:
        A scalar; 0 where the maps agree (with zero gradient), and for an empty batch.
    """
    gap = local_pod(student.square(), scales) - local_pod(teacher.detach().square(), scales)
    square = gap.square().sum(dim=1)
    # The norm has no gradient at 0; where nothing differs there is nothing to mend.
    norm = torch.where(square > 0, square.where(square > 0, 1).sqrt(), 0)
    return norm.sum() / max(len(norm), 1)


def merge_new_into_background(logits: Tensor, old_classes: int) -> Tensor:
    """(B, C, h, w) → (B, K, h, w): new classes' logits are added to background's, for comparison with the teacher."""
    background = logits[:, :1] + logits[:, old_classes:].sum(dim=1, keepdim=True)
    return torch.cat([background, logits[:, 1:old_classes]], dim=1)
