"""The two references: fine-tuning, which forgets, and joint training on the data of all steps, which does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.config import HeadKind
from incseg.methods.parsing import register_method
from incseg.methods.part import SINGLE_LAYER, Part, Segmentation


@dataclass
class CrossEntropy(Segmentation):
    """Cross-entropy with the targets; of a sigmoid head, one binary cross-entropy per class.

    Unless the targets are of every class so far, a sigmoid is asked only about the classes that they label: background
    says nothing about the others.
    """

    heads: ClassVar[tuple[HeadKind, ...]] = SINGLE_LAYER
    complete: ClassVar[bool] = False
    """Whether its targets label every class so far, not only those of the step."""

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_ce``, or ``L_bce``."""
        if view.student.head != "sigmoid":
            return {"segmentation": losses.cross_entropy(view.student_scores, view.targets)}
        classes = view.step.seen if self.complete else (*view.step.labelled_old, *view.step.new)
        return {"segmentation": losses.binary_cross_entropy(view.student_logits, view.targets, classes)}


@dataclass
class WeightedBinaryCrossEntropy(Segmentation):
    """One binary cross-entropy per class that the targets label; a yes weighs more than a no (DKD, STAR)."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("sigmoid",)
    first_step: ClassVar[str | None] = "weighted binary cross-entropy"
    first_positive_weight: float = 1.0
    """In step 0."""
    positive_weight: float = 1.0
    """In later steps."""

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_bce``."""
        return {"segmentation": self.on_images(view)}

    def on_images(self, view: View) -> Tensor:
        """Of the classes that the targets label, the only ones whose logits are enlarged."""
        weight = self.first_positive_weight if view.step.index == 0 else self.positive_weight
        classes = (*view.step.labelled_old, *view.step.new)
        scores = view.student.scores_for(view.labels)
        return losses.binary_cross_entropy(scores, view.targets, classes, positive_weight=weight)


@dataclass
class JointCrossEntropy(CrossEntropy):
    """Cross-entropy with the labels of all steps."""

    complete: ClassVar[bool] = True


@dataclass
class AllData(Part):
    """Keep every image and label seen so far."""

    keeps_data: ClassVar[bool] = True


@register_method("ft", "fine-tune on the new classes and do nothing about forgetting: the lower reference", paper="–")
def ft() -> Sequence[Part]:
    """``L = L_ce``."""
    return [CrossEntropy()]


@register_method(
    "joint", "train on the data and labels of all steps so far: the upper reference", paper="–", alone=True
)
def joint() -> Sequence[Part]:
    """``L = L_ce`` on everything."""
    return [JointCrossEntropy(), AllData()]
