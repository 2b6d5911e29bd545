"""Feature maps pooled over the width and the height of windows, and how far two networks' maps are apart (PLOP)."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from incseg.losses.feature_maps import mean_norm, mean_root, widened
from incseg.losses.pod.strips import gap_strips, is_fusible

SCALES = (1, 2, 4)
Strips = tuple[Tensor, Tensor]  # means over the width of windows (B, D, h, s), and over their height (B, D, s, w)


def local_pod(features: Tensor, scales: Sequence[int] = SCALES) -> Tensor:
    """Width- and height-pooled activations in windows of every scale (PLOP; UCD above eq. 18).

    At scale s the map is cut into s×s windows of ⌊h/s⌋×⌊w/s⌋; in each, the mean over its width and the mean over its
    height are kept. Rows and columns left over by the division are not used, as in the published code.

    Args:
        features: (B, D, h, w) float.
        scales: how many windows per side; scales finer than the map are left out.

    Returns:
        (B, L) all pooled values, concatenated.
    """
    return _joined([_strips(features, scale) for scale in _fitting(features, scales)])


def pod_distance(student: Tensor, teacher: Tensor, scales: Sequence[int] = SCALES, *, fused: bool = False) -> Tensor:
    """``1/B Σ_b ‖Φ(f_b²) − Φ(t_b²)‖₂`` with Φ = local POD, as PLOP's code has it (UCD eq. 18 squares the norm).

    The published factors belong to the norm itself, so that is what is computed.

    Args:
        student: (B, D, h, w) float.
        teacher: the same shape; no gradient flows into it.
        scales: windows per side.
        fused: read both maps once, by a kernel where one can be used; the same to rounding.

    Returns:
        A scalar; 0 where the maps agree (with zero gradient), and for an empty batch.
    """
    fitting = _fitting(student, scales)
    once = fused and _nested(student, fitting)
    if once and is_fusible(student, teacher):
        strips = _coarser(gap_strips(student, teacher.detach(), max(fitting)), fitting)  # Φ is linear
        return mean_root(torch.stack([part.square().sum(dim=(1, 2, 3)) for pair in strips for part in pair]).sum(dim=0))
    pooled = partial(_pooled_once if once else local_pod, scales=fitting)
    return mean_norm(pooled(widened(student).square()) - pooled(widened(teacher.detach()).square()))


def _pooled_once(features: Tensor, scales: Sequence[int]) -> Tensor:
    return _joined(_coarser(_strips(features, max(scales)), scales))


def _joined(strips: Sequence[Strips]) -> Tensor:
    return torch.cat([strip.flatten(1) for pair in strips for strip in pair], dim=1)


def _fitting(features: Tensor, scales: Sequence[int]) -> list[int]:
    return [scale for scale in scales if scale <= min(features.shape[-2:])]


def _nested(features: Tensor, scales: Sequence[int]) -> bool:
    """Whether the windows of every scale are made of whole windows of the finest."""
    finest = max(scales)
    return all(side % finest == 0 for side in features.shape[-2:]) and all(finest % scale == 0 for scale in scales)


def _strips(features: Tensor, scale: int) -> Strips:
    rows, columns = (side // scale for side in features.shape[-2:])
    windows = features[..., : rows * scale, : columns * scale]
    return windows.unflatten(3, (scale, columns)).mean(dim=4), windows.unflatten(2, (scale, rows)).mean(dim=3)


def _coarser(finest: Strips, scales: Sequence[int]) -> list[Strips]:
    """Those of every scale: coarser means are means of the finest."""
    across, down = finest
    return [(across.unflatten(3, (s, -1)).mean(dim=4), down.unflatten(2, (s, -1)).mean(dim=3)) for s in scales]
