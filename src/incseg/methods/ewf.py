"""EWF: after each step, walk part of the way back from the new weights to the old."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from incseg.methods.base import Context, Part, default
from incseg.methods.finetune import CrossEntropy
from incseg.methods.registry import method


@dataclass
class WeightFusion(Part):
    """``θ ← (1−α) θ_old + α θ_new``, ``α = √(n_new/(n_new + n_old))``, background counted as old; old heads rest."""

    remembers: ClassVar[bool | None] = False  # a step ends with fused weights, and nothing else is kept

    def begin(self, context: Context) -> None:
        """Only the newest head learns; at step 0 that is the only one."""
        for head in list(context.student.classifier.heads)[:-1]:
            head.requires_grad_(False)

    def end(self, context: Context) -> None:
        """Fuse every tensor the teacher has, statistics of batch normalisation included."""
        if context.teacher is None:
            return
        new, old = len(context.step.new), context.step.old_classes
        alpha = math.sqrt(new / (new + old))
        before = context.teacher.state_dict()
        with torch.no_grad():
            for name, tensor in context.student.state_dict().items():
                if name in before and tensor.is_floating_point():
                    tensor.lerp_(before[name].to(tensor.device), 1 - alpha)


@method(
    "ewf",
    "fuse the weights of old and new network after each step; composes with any other, as in mib+ucd+ewf",
    paper="Xiao et al., Endpoints Weight Fusion for Class Incremental Semantic Segmentation, CVPR 2023",
)
def ewf() -> Sequence[Part]:
    """The objective of what it is summed with, cross-entropy if alone."""
    return [default(CrossEntropy()), WeightFusion()]
