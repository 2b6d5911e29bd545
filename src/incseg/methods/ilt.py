"""ILT: keep the old outputs and the old features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods.base import LossTerm, Part
from incseg.methods.finetune import CrossEntropy
from incseg.methods.lwf import OutputDistillation
from incseg.methods.registry import method
from incseg.methods.settings import Weight


@dataclass
class EncoderDistillation(LossTerm):
    """The encoder's last stage stays where the teacher has it."""

    needs_teacher: ClassVar[bool] = True
    needs_stages: ClassVar[bool] = True
    weight: float = 100.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_f MSE(stage, stage')``."""
        assert view.teacher is not None
        loss = losses.feature_distillation(view.student.stages[-1], view.teacher.stages[-1])
        return {"encoder": self.weight * loss}


@dataclass
class DecoderDistillation(LossTerm):
    """The embedding stays where the teacher has it."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 100.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_f MSE(f, f')``."""
        assert view.teacher is not None
        loss = losses.feature_distillation(view.student.embedding, view.teacher.embedding)
        return {"decoder": self.weight * loss}


@method(
    "ilt",
    "distillation of the old outputs and of the encoder's features",
    paper="Michieli and Zanuttigh, Incremental Learning Techniques for Semantic Segmentation, ICCVW 2019",
)
def ilt(kd_weight: Weight = 100.0, feature_weight: Weight = 100.0) -> Sequence[Part]:
    """``L = L_ce + λ_kd L_kd + λ_f MSE(encoder)``, with the weights of MiB's code."""
    return [CrossEntropy(), OutputDistillation(kd_weight), EncoderDistillation(feature_weight)]


@method(
    "ilt+",
    "ILT with distillation of the decoder's features too: the paper's ILT†, as far as it is documented",
    paper="Michieli and Zanuttigh, Knowledge Distillation for Incremental Learning in Semantic Segmentation, CVIU 2021",
)
def ilt_plus(kd_weight: Weight = 100.0, feature_weight: Weight = 100.0) -> Sequence[Part]:
    """``L = L_ce + λ_kd L_kd + λ_f (MSE(encoder) + MSE(decoder))``; no public code defines the paper's row."""
    return [
        CrossEntropy(),
        OutputDistillation(kd_weight),
        EncoderDistillation(feature_weight),
        DecoderDistillation(feature_weight),
    ]
