"""Distillation: keep the outputs and features of the student close to the teacher's."""

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.losses.coarse import is_fused, teacher_losses
from incseg.protocol import BACKGROUND, IGNORE
from incseg.upsampling import Scores, full_size


def unbiased_distillation(student_logits: Scores, teacher_logits: Scores, labels: Tensor | None = None) -> Tensor:
    """Output distillation in which the teacher's background may be any new class (MiB; UCD eq. 15 and 16).

    ``−1/(|P|·K) Σ_p Σ_{c<K} q_p(c) log p̂_p(c)`` with q the teacher's softmax over its K classes,
    ``p̂(0) = p(0) + Σ_{c≥K} p(c)`` and ``p̂(c) = p(c)`` for the old foreground classes. Without new classes this is
    ordinary distillation. The division by K follows MiB's published code, to which the usual weight of 10 belongs.

    Args:
        student_logits: (B, C, H, W) float, or coarse ones for that size.
        teacher_logits: (B, K, H, W), likewise, K ≤ C; no gradient flows into it.
        labels: (B, H, W) int64, ground truth that tells every pixel of a new class. What is labelled background is
            none, so ``p̂(0) = p(0)`` there; what is labelled as a new class is not what the teacher says, and costs
            nothing. None, as in the paper: any pixel may be of a new class, and is distilled.

    Returns:
        A scalar; 0 (with zero gradient) for an empty batch.
    """
    old_classes = _old_classes(student_logits, teacher_logits)
    if is_fused(student_logits) and is_fused(teacher_logits):
        total = teacher_losses(student_logits, teacher_logits, merge_new=True, labels=labels).sum()
        return total / teacher_logits.numel()
    log_probs = torch.log_softmax(full_size(student_logits), dim=1)
    background = torch.cat([log_probs[:, :1], log_probs[:, old_classes:]], dim=1).logsumexp(dim=1, keepdim=True)
    if labels is not None:
        background = torch.where((labels == BACKGROUND)[:, None], log_probs[:, :1], background)
    merged = torch.cat([background, log_probs[:, 1:old_classes]], dim=1)
    teacher = torch.softmax(full_size(teacher_logits).detach(), dim=1)
    if labels is not None:
        teacher = teacher * ~_is_new(labels, old_classes)[:, None]
    return -(teacher * merged).sum() / max(merged.numel(), 1)


def label_guided_distillation(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    """Output distillation in which a labelled new class takes the teacher's background (MBS).

    ``−1/(|P|·C) Σ_p Σ_c q̂_p(c) log p_p(c)`` with q the teacher's softmax over its K classes, ``q̂ = [q, 0 … 0]``; only
    where the label y is a class that the teacher does not know, ``q̂(y) = q(0)`` and ``q̂(0) = 0``.

    Args:
        student_logits: (B, C, H, W) float.
        teacher_logits: (B, K, H, W) float, K ≤ C; no gradient flows into it.
        labels: (B, H, W) int64 in 0…C−1, or 255 for ignored.

    Returns:
        A scalar; 0 (with zero gradient) for an empty batch.
    """
    old_classes, classes = _old_classes(student_logits, teacher_logits), student_logits.shape[1]
    teacher = torch.softmax(teacher_logits.detach(), dim=1)
    is_new = _is_new(labels, old_classes)
    takes_background = F.one_hot(labels.where(is_new, BACKGROUND), classes).movedim(-1, 1)
    targets = F.pad(teacher[:, 1:], (0, 0, 0, 0, 1, classes - old_classes)) + takes_background * teacher[:, :1]
    return -(targets * torch.log_softmax(student_logits, dim=1)).sum() / max(student_logits.numel(), 1)


def _is_new(labels: Tensor, old_classes: int) -> Tensor:
    """Which pixels are labelled as a class that the teacher does not know."""
    return (labels >= old_classes) & (labels != IGNORE)


def output_distillation(student_logits: Scores, teacher_logits: Scores) -> Tensor:
    """Distillation over the old classes alone (LwF).

    ``−1/(|P|·K) Σ_p Σ_{c<K} q_p(c) log softmax(z_p[:K])(c)`` with q the teacher's softmax over its K classes.

    Args:
        student_logits: (B, C, H, W) float, or coarse ones for that size.
        teacher_logits: (B, K, H, W), likewise, K ≤ C; no gradient flows into it.

    Returns:
        A scalar; 0 (with zero gradient) for an empty batch.
    """
    old_classes = _old_classes(student_logits, teacher_logits)
    if is_fused(student_logits) and is_fused(teacher_logits):
        return teacher_losses(student_logits, teacher_logits, merge_new=False).sum() / teacher_logits.numel()
    old = full_size(student_logits)[:, :old_classes]
    teacher = torch.softmax(full_size(teacher_logits).detach(), dim=1)
    return -(teacher * torch.log_softmax(old, dim=1)).sum() / max(old.numel(), 1)


def sigmoid_distillation(student_logits: Scores, teacher_logits: Scores) -> Tensor:
    """Distillation of the sigmoids of the old classes (LwF-MC, DKD).

    ``−1/(|P|·K) Σ_p Σ_{c<K} t log σ(z_pc) + (1−t) log σ(−z_pc)`` with t the teacher's sigmoid.

    Args:
        student_logits: (B, C, H, W) float, or coarse ones for that size.
        teacher_logits: (B, K, H, W), likewise, K ≤ C; no gradient flows into it.

    Returns:
        A scalar; 0 (with zero gradient) for an empty batch.
    """
    old = full_size(student_logits)[:, : _old_classes(student_logits, teacher_logits)]
    targets = torch.sigmoid(full_size(teacher_logits).detach())
    return F.binary_cross_entropy_with_logits(old, targets, reduction="sum") / max(old.numel(), 1)


def decomposed_logits(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What speaks for and what speaks against every class: the logits' positive and negative terms (DKD).

    A logit without its bias is ``Σ_d w_d f_d``; ``z⁺ = Σ_d max(w_d f_d, 0)`` and ``z⁻ = Σ_d min(w_d f_d, 0)``. Where
    features end in a ReLU, as the authors', these are the logits of the positive and of the negative weights alone;
    this form also holds for features of either sign.

    Args:
        features: (B, D, h, w) float.
        weight: (C, D, k, k) of the classifier.

    Returns:
        z⁺ and z⁻, (B, C, h, w) each.
    """
    pad = weight.shape[-1] // 2
    up, down = features.clamp_min(0), (-features).clamp_min(0)
    positive, negative = weight.clamp_min(0), (-weight).clamp_min(0)
    speaks_for = F.conv2d(up, positive, padding=pad) + F.conv2d(down, negative, padding=pad)
    speaks_against = F.conv2d(up, negative, padding=pad) + F.conv2d(down, positive, padding=pad)
    return speaks_for, -speaks_against


def feature_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of two feature maps (ILT).

    Args:
        student: (B, D, h, w) float.
        teacher: the same shape; no gradient flows into it.

    Returns:
        A scalar; 0 (with zero gradient) for an empty batch.
    """
    return (student - teacher.detach()).square().sum() / max(student.numel(), 1)


def _old_classes(student_logits: Scores, teacher_logits: Scores) -> int:
    """K, the classes of the teacher; a student has them all and more."""
    if student_logits.shape[1] < teacher_logits.shape[1]:
        raise ValueError(
            f"the student has {student_logits.shape[1]} classes, fewer than its teacher's {teacher_logits.shape[1]}; "
            "a student's classifier only grows"
        )
    return teacher_logits.shape[1]


def merge_new_into_background(logits: Tensor, old_classes: int) -> Tensor:
    """(B, C, h, w) → (B, K, h, w): new classes' logits are added to background's, for comparison with the teacher."""
    background = logits[:, :1] + logits[:, old_classes:].sum(dim=1, keepdim=True)
    return torch.cat([background, logits[:, 1:old_classes]], dim=1)
