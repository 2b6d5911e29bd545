"""MiB: losses and initialisation that account for classes of other steps being labelled as background."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.config import HeadKind
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Distillation, Initialisation, Part, Weight
from incseg.models.heads import SoftmaxHead


@dataclass
class UnbiasedCrossEntropy(CrossEntropy):
    """Cross-entropy in which background may be any old class (UCD eq. 13, 14)."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_seg``; plain cross-entropy at step 0, and where every old class is labelled."""
        loss = losses.unbiased_cross_entropy(
            view.student_scores,
            view.targets,
            old_classes=1 if view.step.complete else view.step.old_classes,
            learn_labelled_old=bool(view.step.labelled_old),
        )
        return {"segmentation": loss}


@dataclass
class UnbiasedDistillation(Distillation):
    """Distillation in which the teacher's background may be any new class (UCD eq. 15, 16)."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 10.0
    trust_labels: bool = False

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_kd L_kd``."""
        labels = view.labels if self.trust_labels else None
        loss = losses.unbiased_distillation(view.student_scores, view.teacher_scores, labels)
        return {"distillation": self.weight * loss}


@dataclass
class BalancedInitialisation(Initialisation):
    """New classes start with equal shares of background's probability, so that outputs first equal the teacher's."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)

    def begin(self, context: Context) -> None:
        """Initialise the head of this step; step 0 has nothing to share."""
        head = context.student.trained_head
        assert isinstance(head, SoftmaxHead), "a run begins by asking every part for the heads it works with"
        head.balance_new_head()


@register_method(
    "mib",
    "unbiased cross-entropy and distillation: background may be any class of another step",
    paper="Cermelli et al., Modeling the Background for Incremental Learning, CVPR 2020",
)
def mib(kd_weight: Weight = 10.0, trust_labels: bool = False) -> Sequence[Part]:
    """``L = L_seg + λ_kd L_kd`` (UCD eq. 12).

    With ``trust_labels``, which is ours, labels say which pixels are of a new class: where background is labelled, it
    keeps the teacher's probability instead of sharing it with new classes, and where a new class is labelled, the
    student need not say what the teacher says.
    """
    return [UnbiasedCrossEntropy(), UnbiasedDistillation(kd_weight, trust_labels), BalancedInitialisation()]
