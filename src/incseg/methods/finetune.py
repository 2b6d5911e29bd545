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
from incseg.upsampling import Scores


@dataclass
class CrossEntropy(Segmentation):
    """Cross-entropy with the targets; of a sigmoid head, one binary cross-entropy per class.

    Unless the targets are of every class so far, a sigmoid is asked only about the classes that they label, and about
    an old one only at foreground: background says nothing about the others.
    """

    heads: ClassVar[tuple[HeadKind, ...]] = SINGLE_LAYER
    complete: ClassVar[bool] = False
    """Whether its targets label every class so far, not only those of the step."""

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_ce``, or ``L_bce``."""
        if view.student.head != "sigmoid":
            return {"segmentation": losses.cross_entropy(view.student_scores, view.targets)}
        if self.complete:
            return {"segmentation": losses.binary_cross_entropy(view.student_logits, view.targets, view.step.seen)}
        return {"segmentation": _of_labelled_classes(view, view.student_logits)}


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
        return _of_labelled_classes(view, view.student.scores_for(view.labels), positive_weight=weight)


def _of_labelled_classes(view: View, scores: Scores, *, positive_weight: float = 1.0) -> Tensor:
    """``L_bce`` of the classes that the step labels: the new ones, and old ones in some of its images.

    Nobody has to label an old class in every image: where the labels are not complete, background may hide it.
    """
    step = view.step
    return losses.binary_cross_entropy(
        scores,
        view.targets,
        (*step.labelled_old, *step.new),
        positive_weight=positive_weight,
        hidden_in_background=() if step.complete else step.labelled_old,
    )


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
