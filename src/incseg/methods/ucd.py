"""UCD: contrast every student pixel with all pixels of the batch, the student's and the teacher's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg import losses
from incseg.batch import View
from incseg.losses.contrastive import Denominator
from incseg.methods.base import LossTerm, Part, default
from incseg.methods.finetune import CrossEntropy
from incseg.methods.registry import method
from incseg.protocol import BACKGROUND, IGNORE

OUTSIDE = -1  # the label of a pixel that is in neither set


@dataclass
class ExtendedMapCrossEntropy(CrossEntropy):
    """Cross-entropy on the extended map (UCD eq. 2): ground truth where there is some, else the teacher's opinion."""

    needs_teacher: ClassVar[bool] = True

    def relabel(self, view: View) -> Tensor | None:
        """The extended map at the size of the image; at step 0, where there is no teacher, the ground truth stands."""
        if view.teacher is None:
            return None
        probs = view.teacher_logits.softmax(dim=1).movedim(1, -1)
        return losses.extended_map(view.labels, probs, num_classes=view.step.num_classes)[0]


@dataclass
class ContrastiveDistillation(LossTerm):
    """``λ L_ucd`` (UCD eq. 11) between the embeddings of student and teacher."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 0.01
    temperature: float = 0.07
    uncertainty: bool = True
    denominator: Denominator = "negatives"
    detach_contrast: bool = False
    stride: int = 16

    def losses(self, view: View) -> dict[str, Tensor]:
        """The anchors are R (eq. 3), the teacher's share of the contrast set is S (eq. 4)."""
        assert view.teacher is not None
        size = self._grid(view)
        probs = F.adaptive_avg_pool2d(view.teacher.logits.softmax(dim=1), size).movedim(1, -1)
        labels, extended = losses.extended_map(_nearest(view.labels, size), probs, num_classes=view.step.num_classes)
        in_r = (labels != BACKGROUND) & (labels != IGNORE)
        in_s = in_r & (labels < view.step.old_classes)
        sigma = extended.flatten(0, 2) if self.uncertainty else None
        loss = losses.contrastive_distillation(
            _pixels(view.student.embedding, size),
            torch.where(in_r, labels, OUTSIDE).flatten(),
            _pixels(view.teacher.embedding, size),
            torch.where(in_s, labels, OUTSIDE).flatten(),
            anchor_probs=sigma,
            teacher_probs=sigma,
            temperature=self.temperature,
            denominator=self.denominator,
            detach_contrast=self.detach_contrast,
        )
        return {"contrast": self.weight * loss}

    def _grid(self, view: View) -> tuple[int, int]:
        """One cell per ``stride`` pixels, as in the paper, or the embedding's own size where that is coarser."""
        height, width = (-(-side // self.stride) for side in view.labels.shape[-2:])
        own_height, own_width = view.student.embedding.shape[-2:]
        return min(height, own_height), min(width, own_width)


def _nearest(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, H, W) labels at the centres of a coarser grid; class ids are never interpolated."""
    return F.interpolate(labels[:, None].float(), size=size, mode="nearest-exact")[:, 0].long()


def _pixels(embedding: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, D, h, w) → (B·h'·w', D), averaged within the cells of a coarser grid."""
    return F.adaptive_avg_pool2d(embedding, size).movedim(1, -1).flatten(0, 2)


@method(
    "ucd",
    "contrastive distillation of all pixels of a batch, weighted by how sure the teacher is",
    paper="Yang et al., Uncertainty-aware Contrastive Distillation for Incremental Semantic Segmentation, TPAMI 2022",
)
def ucd(
    weight: float = 0.01,
    temperature: float = 0.07,
    uncertainty: bool = True,
    denominator: Denominator = "negatives",
    detach_contrast: bool = False,
    stride: int = 16,
) -> Sequence[Part]:
    """``L = L_ce(M̄) + λ_ucd L_ucd``; summed with another method, that one's segmentation loss replaces ``L_ce(M̄)``."""
    contrast = ContrastiveDistillation(weight, temperature, uncertainty, denominator, detach_contrast, stride)
    return [default(ExtendedMapCrossEntropy()), contrast]
