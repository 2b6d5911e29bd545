"""Bilinear enlargement inside a network: by matrix products while a CPU trains it."""

import torch
from torch import Tensor, nn

from incseg.upsampling import enlarge_features


class Enlarging(nn.Upsample):
    """What a decoder enlarges its features with. On a CPU PyTorch's gradient of it takes three times as long."""

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, h, w) → (B, C, H, W), to rounding what ``nn.Upsample`` gives; networks in use keep its form."""
        if not self.training or features.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(features)
        assert isinstance(self.scale_factor, float), "others are left as they are"
        height, width = (side * int(self.scale_factor) for side in features.shape[2:])
        return enlarge_features(features, (height, width), bool(self.align_corners))


def ease_enlarging(network: nn.Module) -> None:
    """Let every bilinear enlargement by a whole number be such a one."""
    for module in network.modules():
        if type(module) is nn.Upsample and module.mode == "bilinear" and _is_whole(module.scale_factor):
            module.__class__ = Enlarging


def _is_whole(factor: object) -> bool:
    return isinstance(factor, float) and factor.is_integer()
