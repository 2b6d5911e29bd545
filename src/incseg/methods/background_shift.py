"""MBS: what the teacher calls background is trusted as far as it is certain of it.

Shown by its authors on a vision transformer; the parts that need no class tokens are here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.config import HeadKind
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Distillation, LossTerm, Part, Share, Weight, default
from incseg.methods.pixels import labels_on_grid
from incseg.methods.unbiased import BalancedInitialisation
from incseg.protocol import BACKGROUND, IGNORE


@dataclass
class SelectiveCrossEntropy(CrossEntropy):
    """Cross-entropy in which background is the teacher's class where that is certain, and ignored where it is in doubt.

    In doubt is background to which the teacher gives less probability than to all its other classes together.
    """

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)
    needs_teacher: ClassVar[bool] = True
    confidence: float = 0.7

    def relabel(self, view: View) -> Tensor | None:
        """Ground truth where it is foreground; elsewhere an old class, background, or 255.

        Where the images label every class, background is what they call so.
        """
        if view.teacher is None or view.step.complete:
            return None
        probs = view.teacher_logits.softmax(dim=1)
        highest, predicted = probs.max(dim=1)
        certain = (predicted != BACKGROUND) & (highest >= self.confidence)
        in_doubt = probs[:, BACKGROUND] < probs[:, 1:].sum(dim=1)
        completed = torch.where(certain, predicted, torch.where(in_doubt, IGNORE, BACKGROUND))
        return torch.where(view.labels == BACKGROUND, completed, view.labels)


@dataclass
class LabelGuidedDistillation(Distillation):
    """The teacher's background is the new class where one is labelled, and background elsewhere."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 25.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_kd L_kd``."""
        loss = losses.label_guided_distillation(view.student_logits, view.teacher_logits, view.labels)
        return {"distillation": self.weight * loss}


@dataclass
class TrustedFeatures(LossTerm):
    """The embedding follows the teacher's where the teacher is to be trusted.

    Fully on old classes, on background by its probability there, and not at all on new classes and ignored pixels.
    """

    needs_teacher: ClassVar[bool] = True
    joins_images: ClassVar[bool] = True  # a mean over the pixels that count
    weight: float = 1.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_f Σ_p w_p ‖f_p − f'_p‖² / (D |{p: w_p > 0}|)``."""
        assert view.teacher is not None
        student, teacher = view.student.embedding, view.teacher.embedding
        targets = labels_on_grid(view.targets, (student.shape[-2], student.shape[-1]))
        background = torch.softmax(view.teacher.logits, dim=1)[:, BACKGROUND]
        is_old = (targets != BACKGROUND) & (targets < view.step.old_classes)
        weights = torch.where(is_old, 1.0, background.where(targets == BACKGROUND, 0.0))
        count = losses.sum_over_processes((weights > 0).sum())
        loss = losses.weighted_feature_distillation(student, teacher, weights, count)
        # Each process has its share of the joined batch's loss; training takes the mean over processes, not the sum.
        return {"features": self.weight * losses.process_count() * loss}


@register_method(
    "mbs",
    "trust the teacher's background as far as it is certain: in pseudo-labels, outputs and features",
    paper="after Park et al., Mitigating Background Shift in Class-Incremental Semantic Segmentation, ECCV 2024",
)
def mbs(confidence: Share = 0.7, kd_weight: Weight = 25.0, feature_weight: Weight = 1.0) -> Sequence[Part]:
    """``L = L_ce(Ŷ) + λ_kd L_kd + λ_f L_f``, Ŷ with pseudo-labels and without doubtful background."""
    return [
        SelectiveCrossEntropy(confidence),
        LabelGuidedDistillation(kd_weight),
        TrustedFeatures(feature_weight),
        default(BalancedInitialisation()),
    ]
