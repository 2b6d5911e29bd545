"""LwF and LwF-MC: keep the old outputs, by softmax or by one sigmoid per class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods.base import Distillation, Part, Segmentation
from incseg.methods.finetune import CrossEntropy
from incseg.methods.registry import method
from incseg.methods.settings import Weight


@dataclass
class OutputDistillation(Distillation):
    """The student's softmax over the old classes follows the teacher's."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 100.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_kd L_kd``."""
        return {"distillation": self.weight * losses.output_distillation(view.student_logits, view.teacher_logits)}


@dataclass
class BinaryCrossEntropy(Segmentation):
    """One yes-or-no question per class."""

    first_step: ClassVar[str | None] = "sigmoid"

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_bce``."""
        return {"segmentation": losses.binary_cross_entropy(view.student_logits, view.targets)}


@dataclass
class SigmoidDistillation(Distillation):
    """The student's yes-or-no answers on the old classes follow the teacher's."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 10.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_kd K L_kd``: the weight belongs to a sum over the K old classes."""
        loss = losses.sigmoid_distillation(view.student_logits, view.teacher_logits)
        return {"distillation": self.weight * view.step.old_classes * loss}


@method(
    "lwf",
    "cross-entropy and distillation of the old outputs",
    paper="Li and Hoiem, Learning without Forgetting, ECCV 2016",
)
def lwf(kd_weight: Weight = 100.0) -> Sequence[Part]:
    """``L = L_ce + λ_kd L_kd``."""
    return [CrossEntropy(), OutputDistillation(kd_weight)]


@method(
    "lwf-mc",
    "a sigmoid per class: binary cross-entropy and distillation of the old answers",
    paper="Rebuffi et al., iCaRL, CVPR 2017",
)
def lwf_mc(kd_weight: Weight = 10.0) -> Sequence[Part]:
    """``L = L_bce + λ_kd K L_bkd``, from step 0 on."""
    return [BinaryCrossEntropy(), SigmoidDistillation(kd_weight)]
