"""What a CPU computes in another way equals what PyTorch does, to the gradient, and only while it is asked for."""

import copy

import pytest
import torch
from torch import Tensor, nn

from conftest import SMALL
from incseg.models import Segmenter
from incseg.models.easing import DilatedConv2d, Enlarging, eased


def assert_same(plain: nn.Module, form: type[nn.Module], features: Tensor) -> None:
    """Eased, a module gives what it gives, forward and backward."""
    network = nn.Sequential(copy.deepcopy(plain))
    expected = plain(features)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [features, *plain.parameters()], upstream)
    with eased(network):
        assert type(network[0]) is form
        found = network(features)
    got = torch.autograd.grad(found, [features, *network.parameters()], upstream)
    for one, other in zip((found, *got), (expected, *wanted), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("size", [(1, 1), (6, 6), (5, 6), (6, 7), (13, 4)])
@pytest.mark.parametrize(("groups", "bias"), [(1, True), (4, False)])
def test_dilated_convolutions(size: tuple[int, int], groups: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 8, 3, dilation=6, padding=6, groups=groups, bias=bias).double()
    assert_same(plain, DilatedConv2d, torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("size", [(1, 1), (6, 6), (3, 5)])
@pytest.mark.parametrize("aligned", [True, False])
def test_enlargements(size: tuple[int, int], aligned: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Upsample(scale_factor=4, mode="bilinear", align_corners=aligned)
    assert_same(plain, Enlarging, torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True))


def test_enlarged_features_stay_in_the_order_that_convolutions_want() -> None:
    enlarged = Enlarging(scale_factor=2, mode="bilinear")(torch.randn(2, 4, 3, 3))
    assert enlarged.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(4, 4, 3, dilation=6),
        nn.Conv2d(4, 4, 3, dilation=6, padding=6, stride=2),
        nn.Conv2d(4, 4, 5, dilation=6, padding=12),
        nn.Conv2d(4, 4, 3, dilation=6, padding=6, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Upsample(scale_factor=4),
        nn.Upsample(scale_factor=1.5, mode="bilinear"),
    ],
)
def test_others_stay_as_they_are(other: nn.Module) -> None:
    before = type(other)
    with eased(other):
        assert type(other) is before


def test_networks_have_both_and_are_as_they_were_afterwards() -> None:
    network = Segmenter(SMALL, [3])
    names, kinds = list(network.state_dict()), [type(module) for module in network.modules()]
    with eased(network):
        dilated = [module for module in network.modules() if isinstance(module, DilatedConv2d)]
        assert {module.dilation for module in dilated} >= {(6, 6), (12, 12), (18, 18)}
        assert any(isinstance(module, Enlarging) for module in network.modules())
        assert list(network.state_dict()) == names
    assert [type(module) for module in network.modules()] == kinds


def test_an_interrupted_iteration_leaves_no_trace() -> None:
    network = nn.Sequential(nn.Conv2d(4, 4, 3, dilation=6, padding=6))

    def interrupted() -> None:
        with eased(network):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert type(network[0]) is nn.Conv2d
