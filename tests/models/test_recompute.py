"""Activation checkpointing: the same network after several updates, in less memory."""

import copy
from contextlib import nullcontext

import pytest
import segmentation_models_pytorch as smp
import torch
from torch import nn

from incseg.models.recompute import blocks, recomputed


def trained(encoder: nn.Module, *, twice: bool) -> dict[str, torch.Tensor]:
    """Everything that changes in three updates, batch normalisation learning all the time."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    torch.manual_seed(0)  # some encoders leave blocks out at random
    for _ in range(3):
        images = torch.rand(2, 3, 64, 64, generator=generator)
        with recomputed(encoder) if twice else nullcontext():
            encoder(images)[-1].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(encoder.state_dict())


# A high-resolution network writes into the list of maps it is given, a dense one gives its list on and adds to it.
@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v2", "tu-hrnet_w18_small", "tu-densenet121", "efficientnet-b0"]
)
def test_a_network_learns_the_same_with_blocks_that_run_twice(name: str) -> None:
    plain = smp.encoders.get_encoder(name, weights=None).train()
    plain.requires_grad_(True)
    again = copy.deepcopy(plain)
    expected, found = trained(plain, twice=False), trained(again, twice=True)
    assert any(key.endswith("running_mean") for key in expected)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize(
    "name", ["resnet18", "efficientnet-b0", "timm-regnetx_002", "tu-densenet121", "tu-tf_efficientnet_lite0"]
)
def test_blocks_keep_their_input_only(name: str) -> None:
    encoder = smp.encoders.get_encoder(name, weights=None).train()
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    def activations(*, twice: bool) -> int:
        kept.clear()
        with (
            recomputed(encoder) if twice else nullcontext(),
            torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
        ):
            encoder(torch.rand(2, 3, 64, 64))
        return sum(kept)

    assert activations(twice=True) < 0.3 * activations(twice=False)


def test_one_long_row_of_layers_has_no_blocks() -> None:
    assert not blocks(smp.encoders.get_encoder("vgg11_bn", weights=None))


def test_nothing_remains_on_the_modules() -> None:
    encoder = smp.encoders.get_encoder("resnet18", weights=None).train()
    momenta = [module.momentum for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)]
    with recomputed(encoder):
        encoder(torch.rand(2, 3, 64, 64))[-1].sum().backward()
    assert all("forward" not in vars(module) for module in encoder.modules())
    assert [module.momentum for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)] == momenta


class Once(nn.Module):
    """A stage with one block, which two stages share and which is given a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Scaled()
        self.stage, self.again = nn.Sequential(self.block), nn.Sequential(self.block)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.block(self.stage(images), factor=2.0)  # type: ignore[no-any-return]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

    def forward(self, images: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return factor * self.layers(images)  # type: ignore[no-any-return]


def test_a_block_alone_in_its_stage_and_shared_is_found_once_and_keeps_its_keywords() -> None:
    network = Once()
    assert blocks(network) == [network.block]
    images = torch.rand(2, 3, 4, 4)
    expected = copy.deepcopy(network)(images)
    with recomputed(network):
        assert torch.equal(network(images), expected)


def test_nothing_remains_when_a_forward_pass_fails() -> None:
    network = Once()
    with pytest.raises(RuntimeError), recomputed(network):
        network(torch.rand(2, 7, 4, 4))
    assert "forward" not in vars(network.block)
