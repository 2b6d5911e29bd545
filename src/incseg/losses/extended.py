"""The extended semantic map: new ground truth laid over the teacher's opinion of everything else."""

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.protocol import IGNORE


def extended_map(ground_truth: Tensor, teacher_probs: Tensor, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Merge ground truth and teacher into one map and its probabilities (UCD, eq. 2 and 9).

    ``M̄ = M`` where M is foreground, ``argmax P`` where M is background;
    ``P̄ = onehot(M)`` where M is foreground, ``[P, 0 … 0]`` elsewhere.

    Args:
        ground_truth: (…) integer labels of the current step: 0 background, 255 ignored.
        teacher_probs: (…, C_old) probabilities of the classes known before, background first.
        num_classes: C, all classes known after this step, background included; C ≥ C_old.

    Returns:
        labels: (…) int64, where ignored pixels stay 255.
        probs: (…, C) in the dtype of ``teacher_probs``; each row sums to 1. Empty input gives empty output.
    """
    old_classes = teacher_probs.shape[-1]
    if teacher_probs.shape[:-1] != ground_truth.shape:
        raise ValueError(
            f"teacher_probs must be ground_truth's shape plus a class axis: got {tuple(teacher_probs.shape)} "
            f"for ground truth {tuple(ground_truth.shape)}"
        )
    if num_classes < old_classes:
        raise ValueError(f"num_classes={num_classes} is smaller than the teacher's {old_classes} classes")
    labels = ground_truth.long()
    foreground = (labels != 0) & (labels != IGNORE)
    merged = torch.where(labels == 0, teacher_probs.argmax(dim=-1), labels)
    padded = F.pad(teacher_probs, (0, num_classes - old_classes))
    one_hot = torch.arange(num_classes, device=labels.device) == labels.unsqueeze(-1)
    return merged, torch.where(foreground.unsqueeze(-1), one_hot.to(padded.dtype), padded)
