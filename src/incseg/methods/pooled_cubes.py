"""RCIL's losses: feature maps pooled in windows and over neighbouring channels follow the teacher's.

Its other half, a network of two branches that are merged after every step, is not included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.config import HeadKind
from incseg.methods.local_pod import STAGES, weighted_maps
from incseg.methods.parsing import register_method
from incseg.methods.part import LossTerm, Part, Weight, default
from incseg.methods.unbiased import BalancedInitialisation, UnbiasedCrossEntropy, UnbiasedDistillation


@dataclass
class PooledCubes(LossTerm):
    """Two distances per layer: in space, of all six layers of PLOP, and over channels, of all but the logits."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)  # it merges the logits of new classes into background's
    needs_teacher: ClassVar[bool] = True
    needs_raw_stages: ClassVar[bool] = True
    weight: float = 0.01
    last_weight: float = 0.0005

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_spatial`` and ``L_channel``; each has the lower weight on its own last layer, as in RCIL's code."""
        weights = self.weight, self.last_weight
        spatial = weighted_maps(view, losses.spatial_cube_distance, *weights)
        channel = weighted_maps(view, losses.channel_cube_distance, *weights, layers=STAGES + 1)
        return {"spatial": spatial, "channel": channel}


@register_method(
    "rcil",
    "the losses of RCIL: pooled feature maps that follow the teacher's, without its network of two branches",
    paper="Zhang et al., Representation Compensation Networks for Continual Semantic Segmentation, CVPR 2022",
)
def rcil(cube_weight: Weight = 0.01, last_weight: Weight = 0.0005, kd_weight: Weight = 100.0) -> Sequence[Part]:
    """``L = L_seg + λ_kd L_kd + L_spatial + L_channel``; the weights are those for VOC.

    In a sum the other method's losses on labels and outputs, if it has any, take the place of the first two.
    """
    return [
        default(UnbiasedCrossEntropy()),
        default(UnbiasedDistillation(kd_weight)),
        PooledCubes(cube_weight, last_weight),
        default(BalancedInitialisation()),
    ]
