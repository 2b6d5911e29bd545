"""Distillation on the output: keep saying about the old classes what the teacher says."""

import torch
from torch import Tensor


def unbiased_distillation(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Output distillation in which the teacher's background may be any new class (MiB; UCD eq. 15 and 16).

    ``−1/(|P|·K) Σ_p Σ_{c<K} q_p(c) log p̂_p(c)`` with q the teacher's softmax over its K classes,
    ``p̂(0) = p(0) + Σ_{c≥K} p(c)`` and ``p̂(c) = p(c)`` for the old foreground classes. Without new classes this is
    ordinary distillation. The division by K follows MiB's published code, to which the usual weight of 10 belongs.

    Args:
        student_logits: (B, C, H, W) float.
        teacher_logits: (B, K, H, W) float, K ≤ C; no gradient flows into it.

    Returns:
        A scalar; 0 (with zero gradient) for an empty batch.
    """
    old_classes = teacher_logits.shape[1]
    if student_logits.shape[1] < old_classes:
        raise ValueError(
            f"the student has {student_logits.shape[1]} classes, fewer than its teacher's {old_classes}; "
            "a student's classifier only grows"
        )
    log_probs = torch.log_softmax(student_logits, dim=1)
    background = torch.cat([log_probs[:, :1], log_probs[:, old_classes:]], dim=1).logsumexp(dim=1, keepdim=True)
    merged = torch.cat([background, log_probs[:, 1:old_classes]], dim=1)
    teacher = torch.softmax(teacher_logits.detach(), dim=1)
    return -(teacher * merged).sum() / max(merged.numel(), 1)
