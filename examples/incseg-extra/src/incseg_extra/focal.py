"""Focal loss instead of cross-entropy: pixels that are already classified well count less."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.batch import View
from incseg.methods import CrossEntropy, Part, register_method
from incseg.protocol import IGNORE


def focal_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """``−1/|I| Σ_{p: y_p≠255} (1 − p_p)^γ log p_p`` with p_p the probability of the label; γ = 0 is cross-entropy.

    Args:
        logits: (B, C, H, W) float.
        labels: (B, H, W) int64, 255 is ignored.
        gamma: γ ≥ 0.

    Returns:
        A scalar; 0 (with zero gradient) when every pixel is ignored.
    """
    log_probs = -F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
    focus = (1 - torch.exp(log_probs)).clamp_min(0) ** gamma
    return -(focus * log_probs).sum() / max(labels.numel(), 1)


@dataclass
class FocalCrossEntropy(CrossEntropy):
    """Fills the segmentation slot. As a subclass of ``CrossEntropy`` it replaces that in a sum such as ``ft+focal``."""

    first_step: ClassVar[str | None] = "focal loss"  # step 0 differs from that of plain cross-entropy
    gamma: float = 2.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_focal``."""
        return {"segmentation": focal_loss(view.student_logits, view.targets, self.gamma)}


@register_method(
    "focal", "focal loss on the labels", paper="Lin et al., Focal Loss for Dense Object Detection, ICCV 2017"
)
def focal(gamma: float = 2.0) -> Sequence[Part]:
    """``L = L_focal``."""
    return [FocalCrossEntropy(gamma)]
