"""Class means: what a class looks like on average."""

import torch
from torch import Tensor
from torch.nn import functional as F


def class_means(features: Tensor, labels: Tensor, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of every class in every group of pixels (an image, or a batch).

    ``μ_bc = 1/|P_bc| Σ_{p∈P_bc} f_bp`` with P_bc the pixels of group b and label c.

    Args:
        features: (B, P, D) float.
        labels: (B, P) int64 in 0…C−1; anything else takes no part.
        num_classes: C.

    Returns:
        means: (B, C, D); zero, with zero gradient, where a group lacks the class.
        ids: (B, C) int64: c where the class is there, −1 where it is not.
    """
    known = (labels >= 0) & (labels < num_classes)
    members = F.one_hot(labels.where(known, num_classes), num_classes + 1)[..., :num_classes].to(features.dtype)
    counts = members.sum(dim=1)
    means = members.transpose(1, 2) @ features / counts.clamp_min(1).unsqueeze(-1)
    ids = torch.arange(num_classes, device=labels.device).expand_as(counts)
    return means, ids.where(counts > 0, -1)
