"""Gaussian mixtures with diagonal covariances, fitted by expectation and maximisation (CoGaMiD's memory of a class)."""

from typing import NamedTuple

import torch
from torch import Tensor

ROUNDS = 20
LEAST_SPREAD = 0.05  # of a component, as a share of the class' own per channel: none shrinks onto a single feature


class Mixture(NamedTuple):
    """K Gaussians.

    Attributes:
        shares: (K,) that sum to 1, or 0 where nothing was seen.
        means: (K, D).
        stds: (K, D).
    """

    shares: Tensor
    means: Tensor
    stds: Tensor


def fit_mixture(features: Tensor, components: int) -> Mixture:
    """(N, D) features → K Gaussians in float32, from starting points far from each other."""
    if not len(features):
        empty = features.new_zeros(components, features.shape[1], dtype=torch.float32)
        return Mixture(empty.sum(dim=1), empty, empty)
    features = features.double()
    spread = features.std(dim=0, correction=0)
    shares = torch.full((components,), 1 / components, dtype=features.dtype, device=features.device)
    mixture = Mixture(shares, _far_apart(features, components), spread.expand(components, -1))
    for _ in range(ROUNDS):
        mixture = mixture_update(features, mixture, least=LEAST_SPREAD * spread)
    return Mixture(*(value.float() for value in mixture))


def mixture_update(features: Tensor, mixture: Mixture, *, least: Tensor) -> Mixture:
    """One round: how much of every feature a component explains, then the components as weighted means.

    ``r_ik ∝ π_k N(f_i; μ_k, σ_k²)``; ``π_k = mean r_ik``, ``μ_k = Σ r_ik f_i / Σ r_ik`` and
    ``σ_k² = Σ r_ik (f_i − μ_k)² / Σ r_ik``, at least ``least²``.

    Args:
        features: (N, D) float64, N > 0.
        mixture: as it is.
        least: (D,) standard deviations.
    """
    stds = mixture.stds.clamp_min(1e-12)
    scaled = (features[:, None] - mixture.means) / stds
    log_density = -0.5 * scaled.square().sum(dim=2) - stds.log().sum(dim=1)  # up to what is the same for all
    explained = (log_density + mixture.shares.log()).softmax(dim=1)
    weight = explained.sum(dim=0)
    means = explained.T @ features / weight.clamp_min(1e-12).unsqueeze(1)
    squares = explained.T @ features.square() / weight.clamp_min(1e-12).unsqueeze(1)
    stds = torch.maximum((squares - means.square()).clamp_min(0).sqrt(), least)
    return Mixture(weight / len(features), means, stds)


def _far_apart(features: Tensor, number: int) -> Tensor:
    """(K, D): the feature nearest to the mean, then each time the one farthest from those chosen."""
    chosen = features[(features - features.mean(dim=0)).square().sum(dim=1).argmin()][None]
    while len(chosen) < number:
        distance = torch.cdist(features, chosen).amin(dim=1)
        chosen = torch.cat([chosen, features[distance.argmax()][None]])
    return chosen
