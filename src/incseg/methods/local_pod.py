"""PLOP: pseudo-labels where the teacher is certain, and distillation of feature maps pooled in strips."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from incseg import losses
from incseg.batch import View, in_float32
from incseg.config import HeadKind
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, LossTerm, Part, Weight
from incseg.methods.unbiased import BalancedInitialisation
from incseg.protocol import BACKGROUND, IGNORE, Step
from incseg.upsampling import Scores

Thresholds = Literal["median", "released"]
LOWEST_THRESHOLD = 0.001
STAGES = 4  # the encoder's last four


@dataclass
class PseudoLabelCrossEntropy(CrossEntropy):
    """Cross-entropy on ground truth and certain pseudo-labels, weighted by how many there are (UCD eq. 19).

    Where the ground truth is background, the teacher's class is the label if its uncertainty is below that class'
    threshold, measured once before the step over all processes; otherwise the pixel is ignored. An image's loss is
    multiplied by ν, the share of its background that got a pseudo-label. With ``trust_labels``, where the teacher says
    background too, background is the label however uncertain the teacher is.
    """

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)
    needs_teacher: ClassVar[bool] = True
    thresholds: Thresholds = "median"
    trust_labels: bool = False

    def begin(self, context: Context) -> None:
        """One pass over the step's data: the uncertainty on background, by the class that the teacher predicts."""
        if context.teacher is None or context.step.complete:
            return
        classes = context.step.old_classes
        counts = torch.zeros(classes, losses.BINS, dtype=torch.int64, device=context.teacher.mean.device)
        with torch.no_grad():
            for batch in context.batches(1):
                with context.autocast():  # the thresholds are for uncertainties in the precision of training
                    outputs = context.teacher(batch.images)
                scores = in_float32(outputs).scores_for(batch.labels)
                predicted, uncertainty = self._read(losses.enlarge(scores, fused=context.fused), context.step)
                background = batch.labels == BACKGROUND
                counts += losses.class_histogram(uncertainty[background], predicted[background], num_classes=classes)
        median = losses.released_median if self.thresholds == "released" else losses.median_of_histogram
        self.memory["thresholds"] = median(losses.sum_over_processes(counts)).clamp_min(LOWEST_THRESHOLD)

    def _read(self, teacher: Scores, step: Step) -> tuple[Tensor, Tensor]:
        """(B, H, W) the teacher's class and its entropy, as the paper normalises it or as the released code does."""
        released_for = step.num_classes if self.thresholds == "released" else None
        return losses.prediction_with_entropy(teacher, released_for=released_for)

    def relabel(self, view: View) -> Tensor | None:
        """Ground truth where it is foreground, the teacher's class where it is certain, 255 elsewhere."""
        if view.teacher is None or view.step.complete:
            return None
        predicted, uncertainty = self._read(view.teacher_scores, view.step)
        certain = uncertainty < self.memory["thresholds"][predicted]
        if self.trust_labels:
            certain |= predicted == BACKGROUND
        return torch.where(view.labels == BACKGROUND, torch.where(certain, predicted, IGNORE), view.labels)

    def losses(self, view: View) -> dict[str, Tensor]:
        """``ν L_ce``, ν per image; plain cross-entropy at step 0, and where every old class is labelled."""
        if view.teacher is None or view.step.complete:
            return super().losses(view)
        background = view.labels == BACKGROUND
        accepted = background & (view.targets != IGNORE)
        share = accepted.sum(dim=(1, 2)) / (background.sum(dim=(1, 2)) + 1e-6)
        per_image = losses.cross_entropy_per_image(view.student_scores, view.targets)
        return {"segmentation": (share * per_image).mean()}


@dataclass
class LocalPod(LossTerm):
    """Local POD on the encoder's last four stages, before their activation, embedding and logits (UCD eq. 18)."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)  # it merges the logits of new classes into background's
    needs_teacher: ClassVar[bool] = True
    needs_raw_stages: ClassVar[bool] = True
    weight: float = 0.01
    logits_weight: float = 0.0005

    def losses(self, view: View) -> dict[str, Tensor]:
        """``√(C/C_new) · 1/6 Σ_l λ_l ‖Φ_l − Φ'_l‖``; background counts in C, as in PLOP's code."""
        distance = partial(losses.pod_distance, fused=view.fused)
        return {"pod": weighted_maps(view, distance, self.weight, self.logits_weight)}


def weighted_maps(
    view: View,
    distance: Callable[[Tensor, Tensor], Tensor],
    weight: float,
    last_weight: float,
    layers: int = STAGES + 2,
) -> Tensor:
    """``√(C/C_new) · 1/L Σ_l λ_l d(student, teacher)`` over stages, embedding and logits, as many layers as wanted.

    New classes' logits are merged into background's; the last layer has a weight of its own. Where a step brings no
    new class, the factor is 1, as in PLOP's code for domains.
    """
    assert view.teacher is not None
    logits = losses.merge_new_into_background(view.student.logits, view.step.old_classes)
    maps = [*view.student.raw_stages[-STAGES:], view.student.embedding, logits][:layers]
    teacher_maps = [*view.teacher.raw_stages[-STAGES:], view.teacher.embedding, view.teacher.logits][:layers]
    weights = [weight] * (len(maps) - 1) + [last_weight]
    terms = [w * distance(s, t) for w, s, t in zip(weights, maps, teacher_maps, strict=True)]
    scale = math.sqrt(view.step.num_classes / (len(view.step.new) or view.step.num_classes))
    return scale * torch.stack(terms).mean()


@register_method(
    "plop",
    "pseudo-labels by entropy, and pooled feature maps that follow the teacher's",
    paper="Douillard et al., PLOP: Learning without Forgetting for Continual Semantic Segmentation, CVPR 2021",
)
def plop(
    pod_weight: Weight = 0.01,
    logits_weight: Weight = 0.0005,
    thresholds: Thresholds = "median",
    trust_labels: bool = False,
) -> Sequence[Part]:
    """``L = ν L_ce(S) + λ_pod L_pod`` (UCD eq. 18–20); the weights are those for VOC.

    ``thresholds``: pseudo-labels are certain below the median entropy of their class, or below what the released code
    computes in its place, which accepts more of them. ``trust_labels``, which is ours: where labels and teacher both
    say background, it is background.
    """
    return [
        PseudoLabelCrossEntropy(thresholds, trust_labels),
        LocalPod(pod_weight, logits_weight),
        BalancedInitialisation(),
    ]
