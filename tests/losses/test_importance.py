import pytest
import torch

from incseg.losses import min_max, weighted_distance


def test_importances_are_scaled_to_the_unit_interval() -> None:
    assert min_max(torch.tensor([[2.0, 4.0], [6.0, 3.0]])).tolist() == [[0, 0.5], [1, 0.25]]
    assert min_max(torch.full((3,), 7.0)).tolist() == [0, 0, 0]
    assert min_max(torch.tensor([0.0, 1e-8, 3e-8])).tolist() == pytest.approx([0, 0.25, 0.75])


def test_distance_is_weighted_and_pulls_on_the_present_only() -> None:
    now = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    before = torch.tensor([0.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([1.0, 9.0, 0.5], dtype=torch.float64)
    loss = weighted_distance(now, before, weight)
    assert loss.item() == pytest.approx(1 + 0 + 0.5 * 4)
    loss.backward()
    assert before.grad is None
    assert torch.autograd.gradcheck(lambda x: weighted_distance(x, before.detach(), weight), now)
