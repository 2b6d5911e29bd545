"""Decoders of our own: DeepLab-v3's head as the reference code of this field has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from incseg.models.activations import SLOPE

OURS = "deeplabv3-mib"  # the one decoder that is not smp's
WINDOW = 32  # cells along a side of the pooled branch in evaluation: the whole of a crop of 512 at stride 16
RATES = {8: (12, 24, 32), 16: (6, 12, 18)}  # dilations by output stride; at 8, DeepLab-v3's own are 12, 24, 36


@dataclass(frozen=True)
class NetworkParts:
    """What a segmenter is built from."""

    encoder: nn.Module
    decoder: nn.Module
    segmentation_head: nn.Module
    """Only its number of input channels is looked at."""


class SummedDeepLab(nn.Module):
    """DeepLab-v3's head as in the code of MiB, PLOP and UCD.

    ``f = act(reduce(act([1×1, 3×3 at three dilations])) + reduce'(act(pool)))``: one normalisation and leaky ReLU after
    the branches are concatenated, the pooled branch added instead of concatenated, and no further 3×3 convolution. In
    evaluation the pooled branch averages over a sliding window as large as the training crops.

    Args:
        in_channels: of the encoder's last stage.
        channels: D, of every branch and of the embedding.
        rates: dilations of the 3×3 branches.
        window: cells along a side of the sliding window.
    """

    def __init__(self, in_channels: int, channels: int = 256, rates: Sequence[int] = RATES[16], window: int = WINDOW):
        super().__init__()
        self.channels, self.window = channels, window
        self.branches = nn.ModuleList([nn.Conv2d(in_channels, channels, 1, bias=False)])
        self.branches += [nn.Conv2d(in_channels, channels, 3, padding=r, dilation=r, bias=False) for r in rates]
        self.normalise = normalised(channels * len(self.branches))
        self.reduce = nn.Conv2d(channels * len(self.branches), channels, 1, bias=False)
        self.pooled = nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, bias=False),
            normalised(channels),
            nn.Conv2d(channels, channels, 1, bias=False),
        )
        self.normalise_sum = normalised(channels)
        gain = nn.init.calculate_gain("leaky_relu", SLOPE)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_normal_(module.weight, gain)

    def forward(self, stages: Sequence[Tensor]) -> Tensor:
        """The encoder's stages, of which the last is used → (B, D, h, w)."""
        features = stages[-1]
        joined = self.normalise(torch.cat([branch(features) for branch in self.branches], dim=1))
        pooled = self.pooled(self._pool(features))
        embedding: Tensor = self.normalise_sum(self.reduce(joined) + pooled)
        return embedding

    def _pool(self, features: Tensor) -> Tensor:
        """The mean of each image in training; in evaluation that of a window around each cell."""
        if self.training:
            return features.mean(dim=(2, 3), keepdim=True)
        (rows, height), (columns, width) = (sliding_window(side, self.window, features) for side in features.shape[-2:])
        return rows @ features @ columns.T / (height * width)


def sliding_window(cells: int, largest: int, like: Tensor) -> tuple[Tensor, int]:
    """(cells, cells) ones where a cell is in the window around another, and how many cells a window has.

    Windows at the border are those nearest to it that lie inside. Written without a condition on the size, so that a
    network exported with images of one size is right for all.
    """
    width = cast(int, torch.sym_min(cells, largest))  # a symbol while exporting, which computes like an int
    place = torch.arange(cells, device=like.device)
    first = (place - (width - 1) // 2).clamp(0, cells - width)[:, None]
    return ((place >= first) & (place < first + width)).to(like.dtype), width


def normalised(channels: int) -> nn.Sequential:
    """Batch normalisation and leaky ReLU."""
    return nn.Sequential(nn.BatchNorm2d(channels), nn.LeakyReLU(SLOPE))
