"""Enlargement by matrix products equals PyTorch's own, to the gradient."""

import copy

import pytest
import torch
from torch import nn

from conftest import SMALL
from incseg.models import Segmenter
from incseg.models.enlarging import Enlarging, ease_enlarging


@pytest.mark.parametrize("size", [(1, 1), (6, 6), (3, 5)])
@pytest.mark.parametrize("aligned", [True, False])
def test_it_computes_what_pytorch_does(size: tuple[int, int], aligned: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Upsample(scale_factor=4, mode="bilinear", align_corners=aligned)
    eased = nn.Sequential(copy.deepcopy(plain))
    ease_enlarging(eased)
    assert isinstance(eased[0], Enlarging)
    features = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 4, 4 * size[0], 4 * size[1], dtype=torch.float64)
    for network in (eased, eased.eval()):
        torch.testing.assert_close(network(features), plain(features))
        found, expected = (torch.autograd.grad(each(features), features, upstream) for each in (network, plain))
        torch.testing.assert_close(found, expected)


def test_features_stay_in_the_order_that_convolutions_want() -> None:
    enlarged = Enlarging(scale_factor=2, mode="bilinear")(torch.randn(2, 4, 3, 3))
    assert enlarged.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("other", [nn.Upsample(scale_factor=4), nn.Upsample(scale_factor=1.5, mode="bilinear")])
def test_others_stay_as_they_are(other: nn.Upsample) -> None:
    ease_enlarging(other)
    assert type(other) is nn.Upsample


def test_networks_enlarge_with_what_can_be_eased() -> None:
    network = Segmenter(SMALL, [3])
    ease_enlarging(network)
    assert any(isinstance(module, Enlarging) for module in network.modules())
