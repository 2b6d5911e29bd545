"""Contrastive distillation: pull pixels of one class together and push the others apart, across two networks."""

from typing import Literal

import torch
from torch import Tensor

Denominator = Literal["negatives", "pair"]
Backend = Literal["auto", "eager"]


def contrastive_distillation(
    anchors: Tensor,
    anchor_labels: Tensor,
    teacher: Tensor,
    teacher_labels: Tensor,
    *,
    anchor_probs: Tensor | None = None,
    teacher_probs: Tensor | None = None,
    temperature: float = 0.07,
    denominator: Denominator = "negatives",
    detach_contrast: bool = False,
    backend: Backend = "auto",
) -> Tensor:
    """Uncertainty-aware contrastive distillation between student and teacher pixels (UCD, eq. 5–8, 10 and 11).

    ``1/|R| Σ_a 1/|G(a)| Σ_{g∈G(a)} σ_ag (L_a − s_ag)`` where
    ``s_aj = cos(f_a, f_j)/τ``, ``L_a = log Σ_{j: label differs} exp s_aj`` and ``σ_ag = P̄_a · P̄_g``.
    The anchors are R; each is contrasted with the other anchors and all teacher pixels, and its positives G(a) are
    those of its own label. An anchor without a positive or without a negative contributes 0 and counts in |R|.

    A negative label takes a pixel out of its set, so that a mask costs no host–device synchronisation. A zero feature
    vector has cosine 0 with everything and receives no gradient.

    Args:
        anchors: (N, D) student features, of any length: they are normalised here.
        anchor_labels: (N,) integer class ids; below 0: not an anchor.
        teacher: (M, D) features of the frozen teacher; no gradient flows into them.
        teacher_labels: (M,) integer class ids; below 0: not in the contrast set.
        anchor_probs: (N, C) extended probabilities P̄ of the anchors, or None for σ = 1 (plain CD).
        teacher_probs: (M, C) the same for the teacher's pixels.
        temperature: τ > 0.
        denominator: ``"negatives"`` is eq. 8; ``"pair"`` adds the positive itself to its denominator (InfoNCE).
        detach_contrast: stop the gradient on the contrast side, as the authors' release does; the paper does not.
        backend: ``"eager"`` materialises the N×(N+M) similarities and is the definition; ``"auto"`` picks.

    Returns:
        A scalar, float32 or wider; 0 with zero gradient when there is no anchor.
    """
    _check(anchors, anchor_labels, teacher, teacher_labels, anchor_probs, teacher_probs)
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if denominator not in ("negatives", "pair"):
        raise ValueError(f'denominator must be "negatives" or "pair", got {denominator!r}')
    if backend not in ("auto", "eager"):
        raise ValueError(f'backend must be "auto" or "eager", got {backend!r}')
    return _eager(
        anchors,
        anchor_labels,
        teacher,
        teacher_labels,
        anchor_probs,
        teacher_probs,
        temperature,
        denominator,
        detach_contrast,
    )


def _eager(
    anchors: Tensor,
    anchor_labels: Tensor,
    teacher: Tensor,
    teacher_labels: Tensor,
    anchor_probs: Tensor | None,
    teacher_probs: Tensor | None,
    temperature: float,
    denominator: Denominator,
    detach_contrast: bool,
) -> Tensor:
    student = unit_vectors(anchors)
    contrast = torch.cat([student.detach() if detach_contrast else student, unit_vectors(teacher.detach())])
    labels = torch.cat([anchor_labels, teacher_labels])
    similarity = student @ contrast.T / temperature

    both_valid = (anchor_labels >= 0)[:, None] & (labels >= 0)[None, :]
    same = anchor_labels[:, None] == labels[None, :]
    itself = torch.zeros_like(same)
    itself.fill_diagonal_(True)
    positive = both_valid & same & ~itself
    negative = both_valid & ~same

    # A finite floor instead of −∞: a row without negatives must not turn its (discarded) gradient into NaN.
    floor = torch.finfo(similarity.dtype).min
    log_negatives = similarity.masked_fill(~negative, floor).logsumexp(dim=1, keepdim=True)
    if denominator == "pair":
        log_negatives = torch.logaddexp(similarity, log_negatives)
    weight = (positive & negative.any(dim=1, keepdim=True)).to(similarity.dtype)
    if anchor_probs is not None and teacher_probs is not None:
        probs = torch.cat([anchor_probs, teacher_probs]).detach().to(similarity.dtype)
        weight = weight * (probs[: len(anchors)] @ probs.T)
    per_anchor = (weight * (log_negatives - similarity)).sum(dim=1) / positive.sum(dim=1).clamp_min(1)
    return per_anchor.sum() / (anchor_labels >= 0).sum().clamp_min(1)


def unit_vectors(features: Tensor) -> Tensor:
    """Rows of unit length in float32 or wider; a zero row stays zero and passes no gradient."""
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    length = torch.linalg.vector_norm(features.detach(), dim=1, keepdim=True)
    zero = length == 0
    safe = torch.where(zero, torch.ones_like(features), features)
    return torch.where(zero, 0.0, safe / torch.linalg.vector_norm(safe, dim=1, keepdim=True))


def _check(
    anchors: Tensor,
    anchor_labels: Tensor,
    teacher: Tensor,
    teacher_labels: Tensor,
    anchor_probs: Tensor | None,
    teacher_probs: Tensor | None,
) -> None:
    """Refuse shapes that do not belong together, saying which."""
    if anchors.ndim != 2 or teacher.ndim != 2 or anchors.shape[1] != teacher.shape[1]:
        raise ValueError(
            "anchors and teacher must be (N, D) and (M, D) with one D: "
            f"got {tuple(anchors.shape)} and {tuple(teacher.shape)}"
        )
    for name, rows, features in (("anchor", anchor_labels, anchors), ("teacher", teacher_labels, teacher)):
        if rows.shape != features.shape[:1]:
            raise ValueError(f"{name}_labels must have one label per row: got {tuple(rows.shape)} for {len(features)}")
    if (anchor_probs is None) != (teacher_probs is None):
        raise ValueError("give anchor_probs and teacher_probs together (UCD), or neither (CD)")
    if anchor_probs is not None and teacher_probs is not None:
        if anchor_probs.shape[:1] != anchors.shape[:1] or teacher_probs.shape[:1] != teacher.shape[:1]:
            raise ValueError("anchor_probs and teacher_probs must have one row per feature")
        if anchor_probs.shape[1:] != teacher_probs.shape[1:] or anchor_probs.ndim != 2:
            raise ValueError(
                "anchor_probs and teacher_probs must be (N, C) and (M, C) with one C: "
                f"got {tuple(anchor_probs.shape)} and {tuple(teacher_probs.shape)}"
            )
