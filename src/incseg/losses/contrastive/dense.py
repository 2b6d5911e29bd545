"""Contrastive distillation, dense: the N×(N+M) similarities in full. The other backends are tested against it."""

import torch
from torch import Tensor

from incseg.losses.contrastive.backend import ContrastSets, ContrastSettings


def unit_vectors(features: Tensor) -> Tensor:
    """Rows of unit length in float32 or wider; a zero row stays zero and passes no gradient."""
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    length = torch.linalg.vector_norm(features.detach(), dim=1, keepdim=True)
    zero = length == 0
    safe = torch.where(zero, torch.ones_like(features), features)
    return torch.where(zero, 0.0, safe / torch.linalg.vector_norm(safe, dim=1, keepdim=True))


def dense_loss(sets: ContrastSets, settings: ContrastSettings) -> Tensor:
    """``1/|R| Σ_a 1/|G(a)| Σ_g σ_ag (L_a − s_ag)`` (eq. 5–8, 10 and 11), differentiated by autograd."""
    student = unit_vectors(sets.anchors)
    own_contrast = student.detach() if settings.detach_contrast else student
    contrast = torch.cat([own_contrast, unit_vectors(sets.contrast.detach()).to(student.dtype)])
    labels = torch.cat([sets.anchor_labels, sets.contrast_labels])
    similarity = student @ contrast.T / settings.temperature

    both_valid = (sets.anchor_labels >= 0)[:, None] & (labels >= 0)[None, :]
    same = sets.anchor_labels[:, None] == labels[None, :]
    itself = torch.zeros_like(same)
    itself.fill_diagonal_(True)
    positive = both_valid & same & ~itself
    negative = both_valid & ~same

    # A finite floor instead of −∞: a row without negatives must not turn its (discarded) gradient into NaN.
    floor = torch.finfo(similarity.dtype).min
    log_negatives = similarity.masked_fill(~negative, floor).logsumexp(dim=1, keepdim=True)
    if settings.pair:
        log_negatives = torch.logaddexp(similarity, log_negatives)
    weight = (positive & negative.any(dim=1, keepdim=True)).to(similarity.dtype)
    if sets.anchor_probs is not None and sets.contrast_probs is not None:
        probs = torch.cat([sets.anchor_probs, sets.contrast_probs]).detach().to(similarity.dtype)
        weight = weight * (probs[: len(student)] @ probs.T)
    per_anchor = (weight * (log_negatives - similarity)).sum(dim=1) / positive.sum(dim=1).clamp_min(1)
    return per_anchor.sum() / (sets.anchor_labels >= 0).sum().clamp_min(1)
