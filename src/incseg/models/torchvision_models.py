"""torchvision's DeepLab and FCN, taken apart into what a segmenter is made of."""

from typing import TYPE_CHECKING

import torchvision.models.segmentation as zoo
from torch import Tensor, nn

from incseg.errors import InputError, closest

if TYPE_CHECKING:
    from incseg.models.segmenter import Architecture

NAMES = ("deeplabv3_resnet50", "deeplabv3_resnet101", "deeplabv3_mobilenet_v3_large", "fcn_resnet50", "fcn_resnet101")


class Backbone(nn.ModuleDict):
    """The layers of a torchvision backbone under their own names; returns the image and every stage, finest first."""

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) → the image itself and the feature maps after each stage."""
        features, x = [images], images
        names, ends = list(self), set(self._stage_ends())
        for name in names:
            x = self[name](x)
            if name in ends:
                features.append(x)
        return features

    def _stage_ends(self) -> list[str]:
        """ResNets call their stages layer1 … layer4; a MobileNet's end before a block with a stride."""
        names = list(self)
        if "layer4" in names:
            return ["layer1", "layer2", "layer3", "layer4"]
        strided = [index for index, name in enumerate(names) if getattr(self[name], "_is_cn", False)]
        return [*(names[index - 1] for index in strided[1:] if index > 0), names[-1]]


class Head(nn.Sequential):
    """All of a torchvision head but its last convolution, on the coarsest feature map."""

    def forward(self, features: list[Tensor]) -> Tensor:
        """The stages → the embedding."""
        embedding = features[-1]
        for layer in self:
            embedding = layer(embedding)
        return embedding


class Parts(nn.Module):
    """A torchvision segmentation model as encoder, decoder and classifier, named as smp names them."""

    def __init__(self, whole: nn.Module):
        super().__init__()
        backbone, head = whole.get_submodule("backbone"), list(whole.get_submodule("classifier").children())
        self.encoder = Backbone(dict(backbone.named_children()))
        self.decoder = Head(*head[:-1])
        self.segmentation_head = head[-1]


def torchvision_network(architecture: "Architecture") -> Parts:
    """Build a network by name, without weights: ``decoder`` on ``encoder``, as in deeplabv3 on resnet50."""
    name = f"{architecture.decoder}_{architecture.encoder}"
    if name not in NAMES:
        raise InputError(
            f"'{name}' is not a torchvision model for incseg: choose from {', '.join(NAMES)}.{closest(name, NAMES)}"
        )
    whole: nn.Module = getattr(zoo, name)(weights=None, weights_backbone=None, num_classes=1, aux_loss=False)
    return Parts(whole)
