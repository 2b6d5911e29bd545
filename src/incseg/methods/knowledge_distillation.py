"""LwF, LwF-MC and ILT: keep the teacher's outputs, by softmax or by one sigmoid per class, and its features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Distillation, LossTerm, Part, Segmentation, Weight


@dataclass
class OutputDistillation(Distillation):
    """The student's softmax over the old classes follows the teacher's."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 100.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_kd L_kd``."""
        return {"distillation": self.weight * losses.output_distillation(view.student_scores, view.teacher_scores)}


@dataclass
class BinaryCrossEntropy(Segmentation):
    """Binary cross-entropy: one sigmoid per class."""

    first_step: ClassVar[str | None] = "sigmoid"

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_bce``."""
        return {"segmentation": losses.binary_cross_entropy(view.student_logits, view.targets)}


@dataclass
class SigmoidDistillation(Distillation):
    """The student's sigmoids of the old classes follow the teacher's."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 10.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_kd K L_kd``: the weight belongs to a sum over the K old classes."""
        loss = losses.sigmoid_distillation(view.student_logits, view.teacher_logits)
        return {"distillation": self.weight * view.step.old_classes * loss}


@dataclass
class EncoderDistillation(LossTerm):
    """The encoder's last stage stays close to the teacher's."""

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
    """The embedding stays close to the teacher's."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 100.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_f MSE(f, f')``."""
        assert view.teacher is not None
        loss = losses.feature_distillation(view.student.embedding, view.teacher.embedding)
        return {"decoder": self.weight * loss}


@register_method(
    "lwf",
    "cross-entropy and distillation of the old outputs",
    paper="Li and Hoiem, Learning without Forgetting, ECCV 2016",
)
def lwf(kd_weight: Weight = 100.0) -> Sequence[Part]:
    """``L = L_ce + λ_kd L_kd``."""
    return [CrossEntropy(), OutputDistillation(kd_weight)]


@register_method(
    "lwf-mc",
    "a sigmoid per class: binary cross-entropy and distillation of the old outputs",
    paper="Rebuffi et al., iCaRL, CVPR 2017",
)
def lwf_mc(kd_weight: Weight = 10.0) -> Sequence[Part]:
    """``L = L_bce + λ_kd K L_bkd``, from step 0 on."""
    return [BinaryCrossEntropy(), SigmoidDistillation(kd_weight)]


@register_method(
    "ilt",
    "distillation of the old outputs and of the encoder's features",
    paper="Michieli and Zanuttigh, Incremental Learning Techniques for Semantic Segmentation, ICCVW 2019",
)
def ilt(kd_weight: Weight = 100.0, feature_weight: Weight = 100.0) -> Sequence[Part]:
    """``L = L_ce + λ_kd L_kd + λ_f MSE(encoder)``, with the weights of MiB's code."""
    return [CrossEntropy(), OutputDistillation(kd_weight), EncoderDistillation(feature_weight)]


@register_method(
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
