"""Segmentation losses: cross-entropy, and the form that lets background stand for every old class."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.losses.coarse import is_fused, label_losses
from incseg.protocol import BACKGROUND, IGNORE
from incseg.upsampling import CoarseLogits, Scores, full_size, is_run


def cross_entropy(logits: Scores, labels: Tensor) -> Tensor:
    """Pixel-wise cross-entropy; ignored pixels cost nothing and count in the mean.

    ``−1/|I| Σ_{p: y_p≠255} log softmax(z_p)[y_p]`` with I all pixels, as in the paper (1/N and 1/|I| in UCD eq. 13 and
    19) and in MiB's code. So the mean over devices is the loss of the joined batch, however the ignored pixels fall.

    Args:
        logits: (B, C, H, W) float, or coarse ones for that size.
        labels: (B, H, W) int64 in 0…C−1, or 255 for ignored.

    Returns:
        A scalar; 0 (with zero gradient) when every pixel is ignored.
    """
    if is_fused(logits):
        return label_losses(logits, labels).sum() / labels.numel()
    return _mean_over_pixels(torch.log_softmax(full_size(logits), dim=1), labels)


def cross_entropy_per_image(logits: Scores, labels: Tensor) -> Tensor:
    """(B,) :func:`cross_entropy` of every image for itself, with the same arguments."""
    if is_fused(logits):
        return label_losses(logits, labels) / labels[0].numel()
    images = zip(full_size(logits), labels, strict=True)
    return torch.stack([cross_entropy(image[None], target[None]) for image, target in images])


def unbiased_cross_entropy(
    logits: Scores, labels: Tensor, *, old_classes: int, learn_labelled_old: bool = False
) -> Tensor:
    """Cross-entropy in which background may be any class learnt before (MiB; UCD eq. 13 and 14).

    ``p̃(0) = Σ_{c<K} p(c)`` and ``p̃(c) = p(c)`` for the new classes c ≥ K; then cross-entropy of p̃ with the labels,
    averaged as in :func:`cross_entropy`, which this is for K = 1 (only background is old).

    Args:
        logits: (B, C, H, W) float, or coarse ones for that size.
        labels: (B, H, W) int64 in 0…C−1, or 255 for ignored.
        old_classes: K, the number of classes known before this step, background included.
        learn_labelled_old: a pixel labelled with an old class is learnt as that class; else it counts as background, as
            in MiB's code. Only images that label old classes again make a difference.

    Returns:
        A scalar; 0 (with zero gradient) when every pixel is ignored.
    """
    if is_fused(logits):
        grouped = 1 if learn_labelled_old else old_classes
        return label_losses(logits, labels, old_classes=old_classes, grouped_labels=grouped).sum() / labels.numel()
    log_probs = torch.log_softmax(full_size(logits), dim=1)
    background = torch.logsumexp(log_probs[:, :old_classes], dim=1, keepdim=True)
    as_background = (labels < old_classes) & (labels != IGNORE) & (not learn_labelled_old)
    return _mean_over_pixels(torch.cat([background, log_probs[:, 1:]], dim=1), labels.where(~as_background, 0))


def class_counts(labels: Tensor, *, num_classes: int) -> Tensor:
    """(C,) int64: how many pixels each class has; labels are as in :func:`cross_entropy`."""
    others = max(num_classes, IGNORE) + 1
    counted = labels.flatten().clamp_max(others)  # the one copy that is made of a large tensor
    counts = counted.new_zeros(others + 1)  # bincount would wait for the device to learn how many there are
    counts.scatter_add_(0, counted, counts.new_ones(()).expand_as(counted))
    counts[IGNORE : IGNORE + 1].zero_()  # an index of a single element would wait for the device
    return counts[:num_classes]


def balanced_cross_entropy(
    logits: Scores, labels: Tensor, *, power: float = 1.0, counts: Tensor | None = None
) -> Tensor:
    """Cross-entropy in which rare classes weigh more: by inverse frequency for a power of 1.

    ``Σ_p w(y_p) ce_p / Σ_c n_c w(c)`` with ``w(c) = n_c^−power``, n_c the number of pixels of class c. With power 1
    every class in the batch has the same total weight; with power 0 every labelled pixel has the same weight.

    Args:
        logits: (B, C, H, W) float, or coarse ones for that size.
        labels: (B, H, W) int64 in 0…C−1, or 255 for ignored.
        power: how strongly rare classes are favoured.
        counts: (C,) n_c of the whole batch where this is only a part of it: the losses of the parts then add up to
            that of the whole.

    Returns:
        A scalar; 0 (with zero gradient) when every pixel is ignored.
    """
    if counts is None:
        counts = class_counts(labels, num_classes=logits.shape[1])
    weights = counts.clamp_min(1).to(logits.dtype).pow(-power).where(counts > 0, 0)
    if is_fused(logits):
        total = label_losses(logits, labels, weights=weights).sum()
    else:
        log_probs = torch.log_softmax(full_size(logits), dim=1)
        total = F.nll_loss(log_probs, labels, weights, ignore_index=IGNORE, reduction="sum")
    return total / (counts * weights).sum().clamp_min(torch.finfo(logits.dtype).tiny)


def binary_cross_entropy(
    logits: Scores,
    labels: Tensor,
    classes: Sequence[int] | None = None,
    *,
    positive_weight: float = 1.0,
    hidden_in_background: Sequence[int] = (),
) -> Tensor:
    """Binary cross-entropy with one sigmoid per class: the sum over classes, the mean over pixels (DKD, STAR, LwF-MC).

    ``−1/|I| Σ_{p: y_p≠255} Σ_{c∈S_p} ω [y_p=c] log σ(z_pc) + [y_p≠c] log σ(−z_pc)`` with I all pixels, S_p the classes
    that are asked for there and ω the weight of a yes. S_p is S, without H where ``y_p = 0``: H are the classes that
    background may hide. (In the code of DKD and STAR an ignored pixel is a no; here it costs nothing, as everywhere.)

    Args:
        logits: (B, C, H, W) float, or coarse ones for that size, of which only S is then enlarged.
        labels: (B, H, W) int64 in 0…C−1, or 255 for ignored.
        classes: S, the channels whose pixels the labels tell; None: all, background being a class like any other.
        positive_weight: ω; above 1, classes that cover little of the images are found sooner.
        hidden_in_background: H, channels that are labelled in some places and background in others: foreground says
            yes or no to them, background says nothing.

    Returns:
        A scalar; 0 (with zero gradient) when every pixel is ignored, no class is asked for or there is no pixel.
    """
    asked = _numbers(range(logits.shape[1]) if classes is None else classes, labels.device)
    targets = (labels.unsqueeze(1) == asked.view(1, -1, 1, 1)).to(logits.dtype)
    if classes is not None:
        logits = logits.of(classes) if isinstance(logits, CoarseLogits) else logits.index_select(1, asked)
    weight = None if positive_weight == 1 else targets.new_full((), positive_weight)
    per_pixel = F.binary_cross_entropy_with_logits(full_size(logits), targets, reduction="none", pos_weight=weight)
    if hidden_in_background:
        per_pixel = per_pixel.where(~_hidden(labels, asked, hidden_in_background), 0)
    return per_pixel.sum(dim=1).where(labels != IGNORE, 0).sum() / max(labels.numel(), 1)


def _hidden(labels: Tensor, asked: Tensor, classes: Sequence[int]) -> Tensor:
    """(B, |S|, H, W) bool: where the label is background, which of the channels asked for may hide in it."""
    may_hide = (asked.unsqueeze(1) == _numbers(classes, labels.device)).any(dim=1)
    return (labels == BACKGROUND).unsqueeze(1) & may_hide.view(1, -1, 1, 1)


def _numbers(classes: Sequence[int], device: torch.device) -> Tensor:
    """On a device; those that follow each other are made there, since what is sent to it would wait for it."""
    if is_run(classes):
        return torch.arange(classes[0], classes[-1] + 1, device=device)
    return torch.tensor(classes, dtype=torch.int64, device=device)


def _mean_over_pixels(log_probs: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(log_probs, labels, ignore_index=IGNORE, reduction="sum") / max(labels.numel(), 1)
