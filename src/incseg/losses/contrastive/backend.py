"""The values that travel between contrastive distillation and its backends; free of Triton, so always importable."""

from typing import NamedTuple

from torch import Tensor


class ContrastSets(NamedTuple):
    """The anchors R, and what they meet beside each other (eq. 3 and 4); a label below 0 takes a row out of its set."""

    anchors: Tensor  # (n, D) student features
    anchor_labels: Tensor  # (n,) integer
    contrast: Tensor  # (m, D) everything else in the contrast set, no gradient: the teacher, other processes
    contrast_labels: Tensor  # (m,) integer
    anchor_probs: Tensor | None  # (n, C), or None: σ = 1
    contrast_probs: Tensor | None  # (m, C)


class ContrastSettings(NamedTuple):
    """What the caller chose."""

    temperature: float
    pair: bool  # the positive joins its own denominator (InfoNCE)
    detach_contrast: bool
