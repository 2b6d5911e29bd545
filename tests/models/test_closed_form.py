"""The closed-form head against its definition, written out cell by cell, and the algebra that makes it useful."""

import math

import pytest
import torch
from torch import Tensor

from incseg.errors import TrainingError
from incseg.models.closed_form import (
    LENGTH,
    FeatureLayout,
    RandomFeatures,
    Statistics,
    class_shares,
    complete_background,
    on_grid,
)

WIDTH, CLASSES = 24, 4
LAYOUT = FeatureLayout(channels=(3, 2), strides=(16, 16), width=WIDTH)


def cells(number: int, seed: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Random features and shares of classes that sum to at most 1, in float64."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(number, WIDTH, generator=generator, dtype=torch.float64).relu()
    shares = torch.rand(number, classes, generator=generator, dtype=torch.float64)
    return features, shares / shares.sum(dim=1, keepdim=True)


def fitted(parts: list[tuple[Tensor, Tensor]], weights: Tensor | None = None) -> Statistics:
    total = Statistics.empty(LAYOUT).with_classes(torch.ones(CLASSES))
    for features, shares in parts:
        total.add(features, shares, torch.ones(CLASSES) if weights is None else weights)
    return total


def test_the_head_is_the_ridge_regression_written_out() -> None:
    features, shares = cells(60, seed=0)
    weights = torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64)
    gram = [[0.0] * WIDTH for _ in range(WIDTH)]
    cross = [[0.0] * CLASSES for _ in range(WIDTH)]
    for phi, y in zip(features.tolist(), shares.tolist(), strict=True):
        amount = sum(w * share for w, share in zip(weights.tolist(), y, strict=True))
        for i in range(WIDTH):
            for j in range(WIDTH):
                gram[i][j] += amount * phi[i] * phi[j]
            for c in range(CLASSES):
                cross[i][c] += phi[i] * weights[c].item() * y[c]
    ridge = 0.7
    expected = torch.linalg.solve(
        torch.tensor(gram, dtype=torch.float64) + ridge * torch.eye(WIDTH, dtype=torch.float64),
        torch.tensor(cross, dtype=torch.float64),
    )
    torch.testing.assert_close(fitted([(features, shares)], weights).solve(ridge), expected, rtol=1e-9, atol=1e-12)


def test_the_head_minimises_what_it_is_said_to_minimise() -> None:
    """``Σ_cells Σ_c w_c y_c ‖φᵀH − e_c‖² + γ‖H‖²``: its gradient vanishes at H."""
    features, shares = cells(50, seed=1)
    weights = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
    head = fitted([(features, shares)], weights).solve(ridge=2.0).requires_grad_()
    residual = (features @ head)[:, None, :] - torch.eye(CLASSES, dtype=torch.float64)
    loss = (shares * weights * residual.square().sum(dim=2)).sum() + 2.0 * head.square().sum()
    (gradient,) = torch.autograd.grad(loss, head)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-9, rtol=0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_any_order_and_any_cut_gives_the_same_head(order: tuple[int, ...]) -> None:
    parts = [cells(40 + 7 * k, seed=k) for k in range(3)]
    whole = fitted([(torch.cat([f for f, _ in parts]), torch.cat([y for _, y in parts]))])
    torch.testing.assert_close(fitted([parts[k] for k in order]).solve(1.0), whole.solve(1.0), rtol=1e-8, atol=1e-10)


def test_statistics_of_two_places_add_up_and_come_apart_again() -> None:
    here, there = cells(40, seed=3), cells(30, seed=4)
    both = fitted([here]).plus(fitted([there]))
    torch.testing.assert_close(both.solve(1.0), fitted([here, there]).solve(1.0), rtol=1e-9, atol=1e-12)
    left = both.plus(fitted([there]), sign=-1)
    torch.testing.assert_close(left.solve(1.0), fitted([here]).solve(1.0), rtol=1e-8, atol=1e-10)


def test_subtracting_what_was_never_added_is_said() -> None:
    with pytest.raises(TrainingError, match="not positive definite"):
        fitted([cells(5, seed=0)]).plus(fitted([cells(400, seed=1)]), sign=-1).solve(1.0)


def test_only_blocks_above_the_diagonal_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    features, shares = cells(60, seed=5)
    whole = fitted([(features, shares)]).solve(1.0)
    monkeypatch.setattr("incseg.models.closed_form.BLOCK", 7)
    in_blocks = fitted([(features, shares)])
    assert in_blocks.gram[20, 3] == 0
    torch.testing.assert_close(in_blocks.solve(1.0), whole, rtol=1e-9, atol=1e-12)


def test_a_file_holds_the_upper_triangle() -> None:
    statistics = fitted([cells(60, seed=6)])
    state = statistics.state()
    assert state["gram"].shape == (WIDTH * (WIDTH + 1) // 2,)
    torch.testing.assert_close(Statistics.from_state(state).solve(1.0), statistics.solve(1.0), rtol=0, atol=0)


def test_rare_classes_weigh_more() -> None:
    first = Statistics.empty(LAYOUT).with_classes(torch.tensor([800.0, 100.0]))
    grown = first.with_classes(torch.tensor([25.0]))
    reference = (800 + 100) / 2
    expected = [(reference / n) ** 0.25 for n in (800, 100, 25)]
    assert grown.class_weights(0.25).tolist() == pytest.approx(expected)
    assert grown.class_weights(0.0).tolist() == [1, 1, 1]


def test_random_features_are_those_of_the_formula() -> None:
    layer = RandomFeatures(FeatureLayout(channels=(3, 2), strides=(4, 4), width=5, seed=7, stride=4))
    embedding, stage, finer = torch.randn(2, 3, 2, 3), torch.randn(2, 2, 2, 3), torch.randn(2, 9, 4, 6)
    features = layer(embedding, [finer, stage])
    assert features.shape == (2, 2, 3, 5)
    u, v = embedding[1, :, 0, 2].tolist(), stage[1, :, 0, 2].tolist()
    x = [LENGTH * a / math.hypot(*u) for a in u] + [LENGTH * b / math.hypot(*v) for b in v] + [1.0]
    expected = [max(0.0, sum(r * a for r, a in zip(row, x, strict=True))) for row in layer.projection.tolist()]
    assert features[1, 0, 2].tolist() == pytest.approx(expected, abs=1e-5)
    assert torch.equal(layer.projection, RandomFeatures(layer.layout).projection)


def test_feature_maps_of_any_stride_come_to_the_grid() -> None:
    fine, coarse = torch.randn(1, 2, 8, 8), torch.randn(1, 2, 2, 2)
    assert torch.equal(on_grid(fine, 8, 16), torch.nn.functional.avg_pool2d(fine, 2))
    assert on_grid(coarse, 32, 16).shape == (1, 2, 4, 4)
    assert on_grid(fine, 16, 16) is fine


def test_shares_of_a_cell() -> None:
    labels = torch.tensor([[[0, 1, 2, 2], [1, 1, 255, 2]]])
    soft = class_shares(labels, num_classes=3, stride=2, soft=True)
    assert soft[0, 0].tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 0.75]]
    hard = class_shares(labels, num_classes=3, stride=2, soft=False)  # the pixel below and right of the centre
    assert hard[0, 0].tolist() == [[0, 1, 0], [0, 0, 1]]


def test_background_becomes_what_the_head_before_says() -> None:
    shares = torch.tensor([[[[0.4, 0.0, 0.6], [1.0, 0.0, 0.0]]]])
    scores = torch.tensor([[[[0.1, 0.8], [0.6, 0.35]]]])
    torch.testing.assert_close(
        complete_background(shares, scores, certainty=0.0), torch.tensor([[[[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]]]])
    )
    torch.testing.assert_close(
        complete_background(shares, scores, certainty=1.0), torch.tensor([[[[0.0, 0.28, 0.6], [0.25, 0.0, 0.0]]]])
    )
