"""The reference code's DeepLab head: its sum written out, and its sliding window."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from incseg.config import Network
from incseg.errors import InputError
from incseg.models import Architecture, Segmenter
from incseg.models.activations import SLOPE
from incseg.models.decoders import WINDOW, SummedDeepLab


def decoder() -> SummedDeepLab:
    """With statistics of batch normalisation that do something."""
    torch.manual_seed(0)
    made = SummedDeepLab(6, channels=4, rates=(1, 2, 3)).double()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return made


def test_the_embedding_is_the_sum_of_branches_and_pooled_branch_written_out() -> None:
    head, features = decoder().train(), torch.randn(3, 6, 5, 7, dtype=torch.float64)
    norms = {name: (m.weight, m.bias) for name, m in head.named_modules() if isinstance(m, nn.BatchNorm2d)}

    def activated(x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = (each[:, None, None] for each in norms[name])
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
        y = (x - mean) / (var + 1e-5).sqrt() * weight + bias
        return torch.where(y > 0, y, SLOPE * y)

    state = head.state_dict()
    branches = [F.conv2d(features, state["branches.0.weight"])]
    branches += [F.conv2d(features, state[f"branches.{r}.weight"], padding=r, dilation=r) for r in (1, 2, 3)]
    reduced = F.conv2d(activated(torch.cat(branches, 1), "normalise.0"), state["reduce.weight"])
    pooled = F.conv2d(features.mean((2, 3), keepdim=True), state["pooled.0.weight"])
    pooled = F.conv2d(activated(pooled, "pooled.1.0"), state["pooled.2.weight"])
    expected = activated(reduced + pooled, "normalise_sum.0")
    torch.testing.assert_close(head([features]), expected)


def test_large_images_are_pooled_over_a_window_in_evaluation_alone() -> None:
    head, wide = decoder().eval(), torch.randn(1, 6, 8, WINDOW + 9, dtype=torch.float64)
    pooled = head._pool(wide)
    assert pooled.shape == wide.shape
    left = (WINDOW - 1) // 2
    for column in (left, left + 9):  # the first and the last whole window
        expected = wide[:, :, :, column - left : column - left + WINDOW].mean((2, 3))
        torch.testing.assert_close(pooled[:, :, 0, column], expected)
    torch.testing.assert_close(pooled[..., :left], pooled[..., left : left + 1].expand(-1, -1, -1, left))
    torch.testing.assert_close(pooled[..., left + 9 :], pooled[..., left + 9 : left + 10].expand(-1, -1, -1, 17))
    whole = head._pool(wide[..., :WINDOW])
    torch.testing.assert_close(whole, wide[..., :WINDOW].mean((2, 3), keepdim=True).expand_as(whole))
    assert head.train()._pool(wide).shape[-2:] == (1, 1)


@pytest.mark.parametrize(("decoder", "stride", "window"), [("deeplabv3-mib", 16, 10), ("DeepLabV3-MiB", 8, 20)])
def test_the_window_is_as_large_as_a_training_crop(decoder: str, stride: int, window: int) -> None:
    network = Network(encoder="test_resnet", decoder=decoder, output_stride=stride)
    made = Segmenter(Architecture.of(network, crop_size=160), [2]).decoder
    assert isinstance(made, SummedDeepLab)
    assert made.window == window
    published = Segmenter(Architecture(encoder="test_resnet", decoder=decoder), [2]).decoder
    assert isinstance(published, SummedDeepLab)
    assert published.window == 32


def test_recorded_with_small_images_it_pools_large_ones_by_the_window() -> None:
    head = SummedDeepLab(6, channels=4, rates=(1, 2, 3), window=4).eval()
    sizes: Any = {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    program = torch.export.export(head, ([torch.randn(1, 6, 3, 2)],), dynamic_shapes=[[sizes]])
    program._guards_code = []  # as when a model is exported
    for shape in [(1, 6, 3, 2), (1, 6, 9, 7)]:
        features = torch.randn(shape)
        torch.testing.assert_close(program.module()([features]), head([features]))


@pytest.mark.parametrize("stride", [8, 16])
def test_it_is_built_by_name_on_any_encoder(stride: int) -> None:
    architecture = Architecture(
        encoder="test_resnet", decoder="deeplabv3-mib", output_stride=stride, decoder_options={"channels": 16}
    )
    outputs = Segmenter(architecture, [3]).eval()(torch.zeros(1, 3, 64, 96))
    assert outputs.embedding.shape == (1, 16, 64 // stride, 96 // stride)
    assert outputs.logits.shape[1] == 3


def test_what_it_cannot_be_is_said() -> None:
    with pytest.raises(InputError, match="output stride of 8 or 16, not 32"):
        Segmenter(Architecture(encoder="test_resnet", decoder="deeplabv3-mib", output_stride=32), [2])
    with pytest.raises(InputError, match="'deeplabv3-mib' has no option 'colour'"):
        Segmenter(Architecture(encoder="test_resnet", decoder="deeplabv3-mib", decoder_options={"colour": 1}), [2])
