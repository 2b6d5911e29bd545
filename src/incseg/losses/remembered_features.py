"""Features of old classes from what is remembered of them, and the losses that hold and use them (STAR, Adapter).

With ``across_processes`` the pixels are those of all training processes together, as in ``prototypes``.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.losses.processes import process_count, sum_over_processes

SURE = 0.7  # Adapter's: a probability, or the margin by which the best exceeds the second


class FeatureModel(NamedTuple):
    """What is remembered of the features of every class: their direction and length, and how these vary.

    Attributes:
        direction: (C, D), the mean of the unit features, scaled to length 1 (0 for a class without pixels).
        noise: (C, D), per channel the root mean square of unit features around the direction.
        norm_mean: (C,) of the features' lengths.
        norm_std: (C,) likewise.
        pixels: (C,) how many there were.
    """

    direction: Tensor
    noise: Tensor
    norm_mean: Tensor
    norm_std: Tensor
    pixels: Tensor


def class_sums(values: Tensor, labels: Tensor, *, num_classes: int) -> Tensor:
    """(P, V) values and (P,) labels in 0…C−1, others not used → (C, V) their sums per class, in float64."""
    known = (labels >= 0) & (labels < num_classes)
    members = F.one_hot(labels.where(known, num_classes), num_classes + 1)[:, :num_classes]
    return members.double().T @ values.double()  # unlike an indexed addition, the same to the bit on a GPU too


def feature_sums(features: Tensor, labels: Tensor, *, num_classes: int) -> Tensor:
    """(P, D) features → (C, 2D + 3), which add up over batches: Σu, Σu², Σ‖f‖, Σ‖f‖², Σ1 with ``u = f/‖f‖``."""
    norm = features.norm(dim=1, keepdim=True)
    unit = F.normalize(features, dim=1)
    values = torch.cat([unit, unit.square(), norm, norm.square(), torch.ones_like(norm)], dim=1)
    return class_sums(values, labels, num_classes=num_classes)


def feature_model(sums: Tensor) -> FeatureModel:
    """What :func:`feature_sums` says of the classes.

    The noise is measured around the class' own direction: ``mean (u − d)² = mean u² − 2 d mean u + d²``.
    """
    pixels = sums[:, -1]
    means = sums[:, :-1] / pixels.clamp_min(1).unsqueeze(1)
    channels = (sums.shape[1] - 3) // 2
    unit, square, (norm, norm_square) = means[:, :channels], means[:, channels:-2], means[:, -2:].unbind(dim=1)
    direction = F.normalize(unit, dim=1)
    noise = (square - 2 * direction * unit + direction.square()).clamp_min(0).sqrt()
    norm_std = (norm_square - norm.square()).clamp_min(0).sqrt()
    return FeatureModel(*(value.float() for value in (direction, noise, norm, norm_std, pixels)))


def made_up_features(model: FeatureModel, classes: Tensor, noise: Tensor, norms: Tensor) -> Tensor:
    """Features as the remembered classes had them (STAR): ``(d_c + ν_c ε) max(m_c + s_c η, 0)``, one η per feature.

    Args:
        model: what is remembered.
        classes: (N,) int64, of which class each is to be.
        noise: (N, D), ε: standard normal.
        norms: (N,), η: standard normal.

    Returns:
        (N, D).
    """
    directions = model.direction[classes] + model.noise[classes] * noise
    return directions * (model.norm_mean[classes] + model.norm_std[classes] * norms).clamp_min(0).unsqueeze(1)


def with_replayed_negatives(
    image_loss: Tensor,
    replayed_logits: Tensor,
    cell_logits: Tensor,
    background: Tensor,
    *,
    replayed: float,
    repeats: float,
    across_processes: bool = False,
) -> Tensor:
    """Binary cross-entropy on images, old features and repeated background, all of which new classes say no to (STAR).

    ``(L + w_f mean_N Σ_c log(1 + e^z) + w_b mean_bg Σ_c log(1 + e^z)) / (1 + w_f + w_b)`` with ``w_f = F/P`` and
    ``w_b = ρ |bg|/P``: every replayed feature and repeated cell counts as much as a cell of the images.

    Args:
        image_loss: L, a scalar: a mean over pixels and a sum over the new classes.
        replayed_logits: (N, n) of replayed features.
        cell_logits: (P, n) of the batch's cells.
        background: (P,) bool: the cells that are repeated.
        replayed: F, how many features the N stand for.
        repeats: ρ, how often a background cell is repeated.
        across_processes: P, N, F and the background are this process' share.

    Returns:
        A scalar; L for N = 0 and ρ = 0.
    """
    cells = max(len(cell_logits), 1)
    w_replayed = replayed / cells if len(replayed_logits) else 0.0
    on_replayed = F.softplus(replayed_logits).sum() / max(len(replayed_logits), 1)
    on_background = repeats * F.softplus(cell_logits).sum(dim=1).where(background, 0).sum() / cells
    share = background.sum() / cells
    if across_processes:
        share = sum_over_processes(share) / process_count()
    return (image_loss + w_replayed * on_replayed + on_background) / (1 + w_replayed + repeats * share)


def masked_distillation(student: Tensor, teacher: Tensor, mask: Tensor, *, across_processes: bool = False) -> Tensor:
    """Mean squared difference of two feature maps at chosen pixels (STAR, old-class features maintaining).

    ``1/(|M| D) Σ_{p∈M} ‖f_p − f'_p‖²``; the authors' is 0/0 where M is empty.

    Args:
        student: (B, D, h, w) float.
        teacher: the same shape; no gradient flows into it.
        mask: (B, h, w) bool, M.
        across_processes: M is that of all processes.

    Returns:
        A scalar; 0 (with zero gradient) for an empty mask.
    """
    return _mean_where((student - teacher.detach()).square().mean(dim=1), mask, across_processes)


def similarity_separation(centres: Tensor, present: Tensor, old: Tensor) -> Tensor:
    """Push new classes away from the old class each is most like (STAR, similarity-aware discriminative loss).

    ``1/|C| Σ_{c∈C} 1/min_o ‖μ_c − d_o‖`` over the new classes that are present.

    Args:
        centres: (n, D) unit vectors, μ.
        present: (n,) bool.
        old: (K, D) unit vectors, d; no gradient flows into them.

    Returns:
        A scalar; 0 (with zero gradient) without a present or an old class. A centre on an old one exerts no force.
    """
    if not len(old):
        return centres.sum() * 0
    nearest = (centres[:, None] - old.detach()[None]).square().sum(dim=-1).amin(dim=1)
    pushed = present & (nearest > 0)
    inverse = torch.where(pushed, nearest.where(pushed, 1).rsqrt(), 0)
    return inverse.sum() / pushed.sum().clamp_min(1)


def hesitation(probs: Tensor, labels: Tensor, *, across_processes: bool = False) -> Tensor:
    """Make up the mind of pixels that are neither right nor sure (Adapter, uncertainty-aware constraint).

    ``mean (1 − (p₁ − p₂))²`` over the pixels whose most probable class is not the label and has at most 0.7.

    Args:
        probs: (P, C) float.
        labels: (P,) int64 in 0…C−1; pixels with other labels are not used.
        across_processes: the mean is over the pixels of all processes.

    Returns:
        A scalar; 0 (with zero gradient) where there is no such pixel.
    """
    best, second = probs.topk(2, dim=1).values.unbind(dim=1)
    known = (labels >= 0) & (labels < probs.shape[1])
    return _mean_where((1 - (best - second)).square(), known & (probs.argmax(dim=1) != labels) & (best <= SURE),
                       across_processes)  # fmt: skip


def drifted(model: FeatureModel, shifts: Tensor, agreed: Tensor) -> tuple[FeatureModel, Tensor]:
    """The remembered classes as the network has moved them (Adapter, adaptive deviation compensation).

    ``d ← (d + r δ)/‖d + r δ‖`` and ``ν ← ν + |r δ|`` with δ the mean difference of the unit features of student and
    teacher where both are sure of the class, and ``r = min(agreed/stored pixels, 1)``.

    Args:
        model: what is remembered.
        shifts: (C, D), δ; not used where nothing agrees.
        agreed: (C,) how many pixels it is the mean of.

    Returns:
        The model, and (C,) r, by which other things that are remembered may move too.
    """
    rate = (agreed / model.pixels.clamp_min(1)).clamp_max(1).where(model.pixels > 0, 0).float()
    moved = rate.unsqueeze(1) * shifts.float()
    direction = F.normalize(model.direction + moved, dim=1)
    return model._replace(direction=direction, noise=model.noise + moved.abs()), rate


def _mean_where(values: Tensor, mask: Tensor, across_processes: bool) -> Tensor:
    """The mean of the values that the mask chooses; 0 where it chooses none."""
    total, count = values.where(mask, 0).sum(), mask.sum()
    if across_processes:
        total, count = sum_over_processes(total), sum_over_processes(count)
    return total / count.clamp_min(1)
