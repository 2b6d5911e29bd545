"""Dilated convolutions on small maps equal PyTorch's own, to the gradient."""

import copy

import pytest
import torch
from torch import nn

from conftest import SMALL
from incseg.models import Segmenter
from incseg.models.dilation import DilatedConv2d, ease_dilation


@pytest.mark.parametrize("size", [(1, 1), (6, 6), (5, 6), (6, 7), (13, 4)])
@pytest.mark.parametrize(("groups", "bias"), [(1, True), (4, False)])
def test_it_computes_what_pytorch_does(size: tuple[int, int], groups: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 8, 3, dilation=6, padding=6, groups=groups, bias=bias).double()
    eased = nn.Sequential(copy.deepcopy(plain))
    ease_dilation(eased)
    assert isinstance(eased[0], DilatedConv2d)
    features = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 8, *size, dtype=torch.float64)
    found, expected = (
        (network(features), *torch.autograd.grad(network(features), [features, *network.parameters()], upstream))
        for network in (eased, plain)
    )
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(4, 4, 3, dilation=6),
        nn.Conv2d(4, 4, 3, dilation=6, padding=6, stride=2),
        nn.Conv2d(4, 4, 5, dilation=6, padding=12),
        nn.Conv2d(4, 4, 3, dilation=6, padding=6, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, padding=1),
    ],
)
def test_others_stay_as_they_are(other: nn.Conv2d) -> None:
    ease_dilation(other)
    assert type(other) is nn.Conv2d


def test_networks_have_them_under_the_same_names() -> None:
    network = Segmenter(SMALL, [3])
    eased = [module for module in network.modules() if isinstance(module, DilatedConv2d)]
    assert {module.dilation for module in eased} >= {(6, 6), (12, 12), (18, 18)}
    assert all(list(dict(module.named_parameters())) == ["weight"] for module in eased)
