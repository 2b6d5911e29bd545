"""EWF and DFT act on weights: EWF averages those of student and teacher after each step, DFT freezes the old ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Part, default


@dataclass
class WeightFusion(Part):
    """``θ ← (1−α) θ_old + α θ_new``, ``α = √(n_new/(n_new + n_old))``, background counted as old; old heads freeze."""

    needs_new_classes: ClassVar[bool] = True
    remembers: ClassVar[bool | None] = False  # nothing is kept besides the fused weights

    def begin(self, context: Context) -> None:
        """Train only the newest head of the classifier; at step 0 it is the only one."""
        for head in list(context.student.trained_head.heads)[:-1]:
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


@dataclass
class FrozenBody(Part):
    """After step 0 encoder, decoder and old heads keep their weights and their statistics."""

    needs_new_classes: ClassVar[bool] = True

    def begin(self, context: Context) -> None:
        """Freeze, and switch batch normalisation to its statistics."""
        if context.teacher is None:
            return
        student = context.student
        for module in (student.encoder, student.decoder, *list(student.trained_head.heads)[:-1]):
            module.requires_grad_(False).eval()


@register_method(
    "ewf",
    "fuse the weights of old and new network after each step; composes with any other, as in mib+ucd+ewf",
    paper="Xiao et al., Endpoints Weight Fusion for Class Incremental Semantic Segmentation, CVPR 2023",
)
def ewf() -> Sequence[Part]:
    """The objective of what it is summed with, cross-entropy if alone."""
    return [default(CrossEntropy()), WeightFusion()]


@register_method(
    "dft",
    "freeze the network after step 0 and train each new head alone: a control",
    paper="DFT*, the control of RevisitingCSS",
)
def dft() -> Sequence[Part]:
    """``L = L_ce``, on the newest head's parameters.

    The published variant has the heads of all future steps from the start and knows their number; ours grows.
    """
    return [default(CrossEntropy()), FrozenBody()]
