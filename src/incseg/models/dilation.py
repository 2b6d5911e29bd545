"""Dilated convolutions on small maps: what only ever meets padding is not computed."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DilatedConv2d(nn.Conv2d):
    """A 3×3 convolution that is its centre alone where the others reach beyond a map as small as the dilation.

    So it is with DeepLab's rates of 6, 12 and 18 on crops of 96 pixels, where a CPU spends a tenth of an iteration on
    them.
    """

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C', H, W), to rounding what ``nn.Conv2d`` gives; networks for any size keep its form.

        A GPU gains too little for results to change by rounding.
        """
        large = min(self.dilation) < max(features.shape[2:])
        if large or features.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(features)
        return F.conv2d(features, self.weight[:, :, 1:2, 1:2], self.bias, groups=self.groups)


def ease_dilation(network: nn.Module) -> None:
    """Let every convolution that this is true of be such a one; its parameters and their names stay."""
    for module in network.modules():
        if type(module) is nn.Conv2d and _keeps_size(module) and min(module.dilation) > 1:
            module.__class__ = DilatedConv2d


def _keeps_size(convolution: nn.Conv2d) -> bool:
    return (
        convolution.kernel_size == (3, 3)
        and convolution.stride == (1, 1)
        and convolution.padding == convolution.dilation
        and convolution.padding_mode == "zeros"
    )
