"""UCD: contrast every student pixel with all pixels of the batch, the student's and the teacher's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from incseg import losses
from incseg.batch import View
from incseg.losses.contrastive.interface import Denominator
from incseg.methods.base import Contrast, Part, default
from incseg.methods.finetune import CrossEntropy
from incseg.methods.pixels import grid_size, labels_on_grid, parse_regions, pixels_on_grid, within
from incseg.methods.registry import method
from incseg.methods.settings import Stride, Temperature, Weight

PAPER = "Yang et al., Uncertainty-aware Contrastive Distillation for Incremental Semantic Segmentation, TPAMI 2022"


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
class ContrastiveDistillation(Contrast):
    """``λ L_ucd`` (UCD eq. 11) between the embeddings of student and teacher."""

    needs_teacher: ClassVar[bool] = True
    weight: float = 0.01
    temperature: float = 0.07
    uncertainty: bool = True
    student: str = "old+new"
    """Student pixels that are anchors and contrast, by the extended map: R of eq. 3."""
    teacher: str = "old"
    """Teacher pixels in the contrast set: S of eq. 4."""
    denominator: Denominator = "negatives"
    detach_contrast: bool = False
    stride: int = 16

    def __post_init__(self) -> None:
        parse_regions(self.student)
        parse_regions(self.teacher)

    def losses(self, view: View) -> dict[str, Tensor]:
        """One cell of the grid is one pixel of the paper's H/16 × W/16 maps."""
        assert view.teacher is not None
        size = grid_size(view, self.stride)
        probs = F.adaptive_avg_pool2d(view.teacher.logits.softmax(dim=1), size).movedim(1, -1)
        labels, extended = losses.extended_map(
            labels_on_grid(view.labels, size), probs, num_classes=view.step.num_classes
        )
        sigma = extended.flatten(0, 2) if self.uncertainty else None
        loss = losses.contrastive_distillation_global(
            pixels_on_grid(view.student.embedding, size),
            within(labels, self.student, view.step).flatten(),
            pixels_on_grid(view.teacher.embedding, size),
            within(labels, self.teacher, view.step).flatten(),
            anchor_probs=sigma,
            teacher_probs=sigma,
            temperature=self.temperature,
            denominator=self.denominator,
            detach_contrast=self.detach_contrast,
        )
        return {"contrast": self.weight * loss}


@method("ucd", "contrastive distillation of all pixels of a batch, weighted by how sure the teacher is", paper=PAPER)
def ucd(
    weight: Weight = 0.01,
    temperature: Temperature = 0.07,
    uncertainty: bool = True,
    student: str = "old+new",
    teacher: str = "old",
    denominator: Denominator = "negatives",
    detach_contrast: bool = False,
    stride: Stride = 16,
) -> Sequence[Part]:
    """``L = L_ce(M̄) + λ_ucd L_ucd``; summed with another method, that one's segmentation loss replaces ``L_ce(M̄)``.

    ``student`` and ``teacher`` choose whose pixels take part, as in the paper's Table "ab_ucd": sums of ``old``,
    ``new`` and ``background``. Its rows are old+new+background for both; old+new for both; and the defaults.
    """
    contrast = ContrastiveDistillation(
        weight, temperature, uncertainty, student, teacher, denominator, detach_contrast, stride
    )
    return [default(ExtendedMapCrossEntropy()), contrast]


@method("cd", "contrastive distillation without uncertainty: the ablation of ucd with σ = 1", paper=PAPER)
def cd(weight: Weight = 0.01, temperature: Temperature = 0.07, stride: Stride = 16) -> Sequence[Part]:
    """``L = L_ce(M̄) + λ L_cd`` (UCD eq. 7)."""
    contrast = ContrastiveDistillation(weight, temperature, uncertainty=False, stride=stride)
    return [default(ExtendedMapCrossEntropy()), contrast]
