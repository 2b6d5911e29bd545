"""Mixtures of Gaussians: the update against the textbook, and clusters found."""

import pytest
import torch

import reference_replay as reference
from incseg.losses import Mixture, fit_mixture, mixture_update


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_an_update_equals_its_definition() -> None:
    features, means, stds = random(12, 2), random(3, 2, seed=1), random(3, 2, seed=2).abs() + 0.2
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    least = torch.full((2,), 0.3, dtype=torch.float64)
    found = mixture_update(features, Mixture(shares, means, stds), least=least)
    expected = reference.mixture_update(features.tolist(), shares.tolist(), means.tolist(), stds.tolist(), 0.3)
    for k, (share, mean, std) in enumerate(expected):
        assert found.shares[k].item() == pytest.approx(share)
        assert found.means[k].tolist() == pytest.approx(mean)
        assert found.stds[k].tolist() == pytest.approx(std)


def test_clusters_are_found_with_their_shares_and_spread() -> None:
    centres = torch.tensor([[0.0, 0, 0], [9, 0, 0], [0, 9, 9]], dtype=torch.float64)
    members = torch.tensor([0] * 300 + [1] * 150 + [2] * 50)
    mixture = fit_mixture(centres[members] + random(500, 3), components=3)
    order = mixture.shares.argsort(descending=True)
    torch.testing.assert_close(mixture.shares[order], torch.tensor([0.6, 0.3, 0.1]), atol=0.01, rtol=0)
    torch.testing.assert_close(mixture.means[order].double(), centres, atol=0.4, rtol=0)
    torch.testing.assert_close(mixture.stds, torch.ones(3, 3), atol=0.25, rtol=0)


def test_one_component_is_the_mean_and_the_deviation_and_few_features_do_no_harm() -> None:
    features = random(40, 3)
    one = fit_mixture(features, components=1)
    torch.testing.assert_close(one.means[0].double(), features.mean(dim=0))
    torch.testing.assert_close(one.stds[0].double(), features.std(dim=0, correction=0))
    assert fit_mixture(features[:0], components=2).shares.tolist() == [0, 0]
    assert all(value.isfinite().all() for value in fit_mixture(features[:1], components=3))
