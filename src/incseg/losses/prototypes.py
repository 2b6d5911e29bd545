"""Class means, and losses that shape features around them (SDR).

With ``across_processes`` the pixels are those of all training processes together: every process passes its own, all
call the same functions, and each gets the value of the joined batch. Gradients reach the process that owns a pixel;
their mean over the processes, which is what ``DistributedDataParallel`` takes, is the gradient of the joined batch.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.losses.processes import max_over_processes, sum_over_processes

EPSILON = 1e-15  # the authors', beside a class' largest value and a pixel's sum


def class_means(
    features: Tensor, labels: Tensor, *, num_classes: int, across_processes: bool = False
) -> tuple[Tensor, Tensor]:
    """The mean feature of every class in every group of pixels (an image, or a batch).

    ``μ_bc = 1/|P_bc| Σ_{p∈P_bc} f_bp`` with P_bc the pixels of group b and label c.

    Args:
        features: (B, P, D) float.
        labels: (B, P) int64 in 0…C−1; pixels with other labels are not used.
        num_classes: C.
        across_processes: a group is its pixels of all processes, not only of this one.

    Returns:
        means: (B, C, D); zero, with zero gradient, where a group lacks the class.
        ids: (B, C) int64: c where the class is there, −1 where it is not.
    """
    known = (labels >= 0) & (labels < num_classes)
    members = F.one_hot(labels.where(known, num_classes), num_classes + 1)[..., :num_classes].to(features.dtype)
    sums, counts = members.transpose(1, 2) @ features, members.sum(dim=1)
    if across_processes:
        sums, counts = sum_over_processes(sums), sum_over_processes(counts)
    means = sums / counts.clamp_min(1).unsqueeze(-1)
    ids = torch.arange(num_classes, device=labels.device).expand_as(counts)
    return means, ids.where(counts > 0, -1)


def prototype_matching(means: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Keep the means of the old classes at their prototypes (SDR, prototypes matching).

    ``1/|C| Σ_{c∈C} 1/D ‖μ_c − p_c‖²`` over the classes C that are present.

    Args:
        means: (C, D) float, of this batch.
        prototypes: (C, D) of earlier steps; no gradient flows into them.
        present: (C,) bool: which classes count.

    Returns:
        A scalar; 0 (with zero gradient) when no class is present.
    """
    distance = (means - prototypes.detach()).square().mean(dim=1)
    return distance.where(present, 0).sum() / present.sum().clamp_min(1)


def attraction(
    features: Tensor, labels: Tensor, prototypes: Tensor, *, num_classes: int, across_processes: bool = False
) -> Tensor:
    """Draw the features of a class to its prototype (SDR, attractive force).

    ``1/|C| Σ_c 1/|P_c| Σ_{p∈P_c} 1/D ‖f_p − p_c‖²`` over the classes C that are there. The authors' code divides by |C|
    once per class, so that all but the last class hardly count; this is the mean of their paper.

    Args:
        features: (P, D) float.
        labels: (P,) int64 in 0…C−1; pixels with other labels are not used.
        prototypes: (C, D); no gradient flows into them.
        num_classes: C.
        across_processes: count the pixels of all processes, not only of this one.

    Returns:
        A scalar; 0 (with zero gradient) when no pixel takes part.
    """
    known = (labels >= 0) & (labels < num_classes)
    own = prototypes.detach()[labels.where(known, 0)]
    distance = (features - own).square().mean(dim=1).where(known, 0)
    spread, ids = class_means(
        distance[None, :, None], labels[None], num_classes=num_classes, across_processes=across_processes
    )
    return spread.sum() / (ids >= 0).sum().clamp_min(1)


def repulsion(means: Tensor, present: Tensor) -> Tensor:
    """Push the means of different classes apart (SDR, repulsive force).

    ``1/|pairs| Σ_{i≠j} 1/‖μ_i − μ_j‖`` over the classes that are present.

    Args:
        means: (C, D) float.
        present: (C,) bool.

    Returns:
        A scalar; 0 (with zero gradient) for fewer than two classes. Means that coincide exert no force.
    """
    square = (means[:, None] - means[None]).square().sum(dim=-1)
    pairs = present[:, None] & present[None] & (square > 0)
    inverse = torch.where(pairs, square.where(pairs, 1).rsqrt(), 0)
    return inverse.sum() / pairs.sum().clamp_min(1)


def sparsity(features: Tensor, labels: Tensor, *, num_classes: int, across_processes: bool = False) -> Tensor:
    """Favour features with few strong channels (SDR, features sparsification).

    ``1/|P| Σ_p Σ_d exp(f̂_pd) / Σ_d f̂_pd`` with f̂ the feature over the largest of its class. The gradient flows through
    that largest one too, as in the authors' code: without it a class would gain by growing as a whole.

    Args:
        features: (P, D) float, activations: a pixel's sum should not be negative.
        labels: (P,) int64 in 0…C−1; pixels with other labels are not used.
        num_classes: C.
        across_processes: count the pixels of all processes, not only of this one.

    Returns:
        A scalar; 0 (with zero gradient) when no pixel takes part. A pixel without any activation takes none.
    """
    known = (labels >= 0) & (labels < num_classes)
    scaled = features / (_largest_of_class(features, labels, known, num_classes, across_processes) + EPSILON)
    total = scaled.sum(dim=1)
    counted = known & (total != 0)
    ratio = scaled.exp().sum(dim=1) / (total + EPSILON).where(counted, 1)
    total_ratio, pixels = ratio.where(counted, 0).sum(), counted.sum()
    if across_processes:
        total_ratio, pixels = sum_over_processes(total_ratio), sum_over_processes(pixels)
    return total_ratio / pixels.clamp_min(1)


def _largest_of_class(
    features: Tensor, labels: Tensor, known: Tensor, num_classes: int, across_processes: bool
) -> Tensor:
    """(P, 1) for every pixel the largest value in its class; 1 for pixels that are not used."""
    lowest = torch.finfo(features.dtype).min  # not 0, which would win in a class without a positive value
    strongest = features.amax(dim=1) if features.shape[1] else features.new_zeros(len(features))
    start = features.new_full((num_classes,), lowest)
    largest = start.scatter_reduce(0, labels.where(known, 0), strongest.where(known, lowest), "amax")
    if across_processes:
        largest = max_over_processes(largest)
    return largest[labels.where(known, 0)].where(known, 1).unsqueeze(1)
