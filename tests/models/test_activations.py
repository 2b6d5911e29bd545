"""Leaky encoders, and stages before their last activation."""

import copy

import pytest
import torch
from torch import nn

from incseg.errors import InputError
from incseg.models import Architecture, Segmenter

IMAGES = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)


def segmenter(encoder: str, **more: str) -> Segmenter:
    torch.manual_seed(0)
    architecture = Architecture.model_validate({"encoder": encoder, "decoder": "deeplabv3-mib", **more})
    made = Segmenter(architecture, [3])
    for module in made.encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)  # some start at 0, and a block then returns what it is given
    return made


@pytest.mark.parametrize("encoder", ["resnet18", "test_resnet"])  # smp's own and timm's
@pytest.mark.parametrize(("activation", "slope"), [("none", 0.0), ("leaky", 0.01)])
def test_a_raw_stage_is_the_stage_before_its_activation(encoder: str, activation: str, slope: float) -> None:
    network = segmenter(encoder, activation=activation)
    outputs = network(IMAGES, with_stages=True, with_raw_stages=True)
    assert len(outputs.raw_stages) == len(outputs.stages) == 5
    for raw, stage in zip(outputs.raw_stages, outputs.stages, strict=True):
        assert raw.min().item() < -0.01
        torch.testing.assert_close(torch.where(raw > 0, raw, slope * raw), stage)
        assert raw.requires_grad
    sum(raw.square().mean() for raw in outputs.raw_stages).backward()  # nothing has overwritten them
    assert all(parameter.grad is not None for parameter in network.encoder.parameters())


def test_asking_for_raw_stages_changes_nothing_else() -> None:
    asked = segmenter("resnet18")
    never = copy.deepcopy(asked)
    asked(IMAGES, with_raw_stages=True)
    never(IMAGES)
    assert all(torch.equal(a, b) for a, b in zip(asked.buffers(), never.buffers(), strict=True))
    assert torch.equal(asked(IMAGES).logits, never(IMAGES).logits)
    assert list(asked(IMAGES).raw_stages) == []
    hooks = [hook for module in asked.modules() for hook in (module._forward_hooks, module._forward_pre_hooks)]
    assert not any(hooks)
    teacher = copy.deepcopy(asked).eval()  # its own activations are recorded, not those it was copied from
    assert len(teacher(IMAGES, with_raw_stages=True).raw_stages) == 5


def test_stages_that_end_without_an_activation_are_taken_as_they_are() -> None:
    outputs = segmenter("tf_efficientnet_lite0").eval()(IMAGES, with_stages=True, with_raw_stages=True)
    same = [raw is stage for raw, stage in zip(outputs.raw_stages, outputs.stages, strict=True)]
    assert same[1:] == [True] * 4


def test_leaky_takes_the_place_of_every_relu() -> None:
    network = segmenter("test_resnet", activation="leaky")
    kinds = [type(module) for module in network.encoder.modules()]
    assert nn.ReLU not in kinds
    assert nn.LeakyReLU in kinds
    assert network.state_dict().keys() == segmenter("test_resnet").state_dict().keys(), "weights fit both"
    with pytest.raises(InputError, match="needs an encoder with ReLUs"):
        segmenter("tu-convnext_atto", activation="leaky")
