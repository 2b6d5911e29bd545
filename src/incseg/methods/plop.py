"""PLOP: pseudo-labels where the teacher is sure enough, and feature maps that stay alike in strips."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from incseg import losses
from incseg.batch import View, in_float32, upsample
from incseg.methods.base import Context, LossTerm, Part
from incseg.methods.finetune import CrossEntropy
from incseg.methods.mib import BalancedInitialisation
from incseg.methods.registry import method
from incseg.methods.settings import Weight
from incseg.protocol import BACKGROUND, IGNORE

LOWEST_THRESHOLD = 0.001
STAGES = 4  # the encoder's last four


@dataclass
class PseudoLabelCrossEntropy(CrossEntropy):
    """Cross-entropy on ground truth and sure pseudo-labels, weighted by how many were sure (UCD eq. 19).

    Where the ground truth is background, the teacher's opinion stands if its entropy is at most the median entropy of
    the class it names, measured once before the step over all processes; else the pixel is ignored. An image's loss is
    multiplied by ν, the share of its background that was accepted.
    """

    needs_teacher: ClassVar[bool] = True

    def begin(self, context: Context) -> None:
        """One pass over the step's data: the median entropy of each class the teacher names."""
        if context.teacher is None:
            return
        classes = context.step.old_classes
        counts = torch.zeros(classes, losses.BINS, dtype=torch.int64, device=context.teacher.mean.device)
        with torch.no_grad():
            for batch in context.batches():
                probs = upsample(in_float32(context.teacher(batch.images)), batch.labels).softmax(dim=1)
                looked_at = batch.labels == BACKGROUND
                entropy, named = losses.normalised_entropy(probs)[looked_at], probs.argmax(dim=1)[looked_at]
                counts += losses.class_histogram(entropy, named, num_classes=classes)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(counts)
        self.memory["thresholds"] = losses.median_of_histogram(counts).clamp_min(LOWEST_THRESHOLD)

    def relabel(self, view: View) -> Tensor | None:
        """Ground truth where it is foreground, the teacher where it is sure, 255 elsewhere."""
        if view.teacher is None:
            return None
        probs = view.teacher_logits.softmax(dim=1)
        named = probs.argmax(dim=1)
        sure = losses.normalised_entropy(probs) <= self.memory["thresholds"][named]
        return torch.where(view.labels == BACKGROUND, torch.where(sure, named, IGNORE), view.labels)

    def losses(self, view: View) -> dict[str, Tensor]:
        """``ν L_ce``, ν per image; plain cross-entropy at step 0."""
        if view.teacher is None:
            return super().losses(view)
        background = view.labels == BACKGROUND
        accepted = background & (view.targets != IGNORE)
        share = accepted.sum(dim=(1, 2)) / background.sum(dim=(1, 2)).clamp_min(1)
        per_image = torch.stack(
            [
                losses.cross_entropy(logits[None], targets[None])
                for logits, targets in zip(view.student_logits, view.targets, strict=True)
            ]
        )
        return {"segmentation": (share * per_image).mean()}


@dataclass
class LocalPod(LossTerm):
    """Local POD on the encoder's last four stages, the embedding and the logits (UCD eq. 18)."""

    needs_teacher: ClassVar[bool] = True
    needs_stages: ClassVar[bool] = True
    weight: float = 0.01
    logits_weight: float = 0.0005

    def losses(self, view: View) -> dict[str, Tensor]:
        """``√(C/C_new) · 1/6 Σ_l λ_l ‖Φ_l − Φ'_l‖``; background counts in C, as in PLOP's code."""
        assert view.teacher is not None
        logits = losses.merge_new_into_background(view.student.logits, view.step.old_classes)
        maps = [*view.student.stages[-STAGES:], view.student.embedding, logits]
        taught = [*view.teacher.stages[-STAGES:], view.teacher.embedding, view.teacher.logits]
        weights = [self.weight] * (len(maps) - 1) + [self.logits_weight]
        terms = [w * losses.pod_distance(s, t) for w, s, t in zip(weights, maps, taught, strict=True)]
        scale = math.sqrt(view.step.num_classes / len(view.step.new))
        return {"pod": scale * torch.stack(terms).mean()}


@method(
    "plop",
    "pseudo-labels by entropy, and pooled feature maps that follow the teacher's",
    paper="Douillard et al., PLOP: Learning without Forgetting for Continual Semantic Segmentation, CVPR 2021",
)
def plop(pod_weight: Weight = 0.01, logits_weight: Weight = 0.0005) -> Sequence[Part]:
    """``L = ν L_ce(S) + λ_pod L_pod`` (UCD eq. 18–20); the weights are those for VOC."""
    return [PseudoLabelCrossEntropy(), LocalPod(pod_weight, logits_weight), BalancedInitialisation()]
