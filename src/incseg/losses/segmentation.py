"""Segmentation losses: cross-entropy, and the form that lets background stand for every old class."""

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.protocol import IGNORE


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Pixel-wise cross-entropy, averaged over the pixels that are not ignored.

    ``−1/|V| Σ_{p∈V} log softmax(z_p)[y_p]``, V the pixels with y ≠ 255.

    Args:
        logits: (B, C, H, W) float.
        labels: (B, H, W) int64 in 0…C−1, or 255 for ignored.

    Returns:
        A scalar; 0 (with zero gradient) when every pixel is ignored.
    """
    return _mean_over_labelled(torch.log_softmax(logits, dim=1), labels)


def unbiased_cross_entropy(logits: Tensor, labels: Tensor, *, old_classes: int) -> Tensor:
    """Cross-entropy in which background may be any class learnt before (MiB; UCD eq. 13 and 14).

    ``p̃(0) = Σ_{c<K} p(c)`` and ``p̃(c) = p(c)`` for the new classes c ≥ K; then cross-entropy of p̃ with the labels,
    averaged over the pixels that are not ignored. With K = 1 (only background is old) this is cross-entropy.

    Args:
        logits: (B, C, H, W) float.
        labels: (B, H, W) int64; 255 is ignored, any old class counts as background.
        old_classes: K, the number of classes known before this step, background included.

    Returns:
        A scalar; 0 (with zero gradient) when every pixel is ignored.
    """
    log_probs = torch.log_softmax(logits, dim=1)
    background = torch.logsumexp(log_probs[:, :old_classes], dim=1, keepdim=True)
    merged = torch.cat([background, log_probs[:, old_classes:]], dim=1)
    is_new = (labels >= old_classes) & (labels != IGNORE)
    shifted = torch.where(is_new, labels - old_classes + 1, torch.where(labels == IGNORE, IGNORE, 0))
    return _mean_over_labelled(merged, shifted)


def _mean_over_labelled(log_probs: Tensor, labels: Tensor) -> Tensor:
    total = F.nll_loss(log_probs, labels, ignore_index=IGNORE, reduction="sum")
    return total / (labels != IGNORE).sum().clamp_min(1)
