"""UCD and its ablations: contrast every pixel of the student with the other pixels of the batch.

``ucd`` and ``cd`` contrast with the pixels of student and teacher; ``pixel`` and ``segment`` stay within the student
and need no teacher.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from incseg import losses
from incseg.batch import View
from incseg.losses.contrastive import Denominator
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Contrast, Part, Stride, Temperature, Weight, default
from incseg.methods.pixels import grid_size, keep_regions, labels_on_grid, parse_regions, pixels_on_grid
from incseg.protocol import BACKGROUND, IGNORE

PAPER = "Yang et al., Uncertainty-aware Contrastive Distillation for Incremental Semantic Segmentation, TPAMI 2022"
VISIBLE, COMPLETE = "new+background", "old+new+background"  # what the ground truth of a step contains


@dataclass
class ExtendedMapCrossEntropy(CrossEntropy):
    """Cross-entropy on the extended map (UCD eq. 2): ground truth where it is foreground, else the teacher's class."""

    needs_teacher: ClassVar[bool] = True
    complete: ClassVar[bool] = True

    def relabel(self, view: View) -> Tensor | None:
        """The extended map at the size of the image; where the ground truth is complete, and at step 0, that."""
        if view.teacher is None or view.step.complete:
            return None
        predicted, _ = losses.prediction(view.teacher_scores)
        return losses.extended_labels(view.labels, predicted)


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
    released: bool = False
    """As in the authors' release: ignored pixels count as background, and the mean is over anchors with a positive."""

    def __post_init__(self) -> None:
        parse_regions(self.student)
        parse_regions(self.teacher)

    def losses(self, view: View) -> dict[str, Tensor]:
        """One cell of the grid is one pixel of the paper's H/16 × W/16 maps."""
        assert view.teacher is not None
        size, classes = grid_size(view, self.stride), view.step.num_classes
        probs = F.adaptive_avg_pool2d(view.teacher.logits.softmax(dim=1), size).movedim(1, -1)
        truth = labels_on_grid(view.labels, size)
        truth = truth.where(truth != IGNORE, BACKGROUND) if self.released else truth
        labels, extended = losses.extended_map(truth, probs, num_classes=classes)
        labels = truth if view.step.complete else labels
        anchor_labels, teacher_labels = (
            keep_regions(labels, regions, view.step).flatten() for regions in (self.student, self.teacher)
        )
        sigma = extended.flatten(0, 2) if self.uncertainty else None
        loss = losses.contrastive_distillation_global(
            pixels_on_grid(view.student.embedding, size).to(view.computed_in),
            anchor_labels,
            pixels_on_grid(view.teacher.embedding, size).to(view.computed_in),
            teacher_labels,
            anchor_probs=sigma,
            teacher_probs=sigma,
            temperature=self.temperature,
            denominator=self.denominator,
            detach_contrast=self.detach_contrast,
            only_members=view.fused,
        )
        if self.released:
            loss = loss / losses.share_with_positive(anchor_labels, teacher_labels, num_classes=classes).to(loss.dtype)
        return {"contrast": self.weight * loss}


@dataclass
class FrozenFirstHead(Part):
    """The first head, of background and the classes of step 0, keeps its weights after step 0."""

    def begin(self, context: Context) -> None:
        """Freeze it; a part that initialises the new head may still share out background's bias."""
        if context.teacher is not None:
            context.student.trained_head.heads[0].requires_grad_(False)


@dataclass
class NeverTrainedFirstHead(FrozenFirstHead):
    """The first head stays as it was initialised, from step 0 on: the network learns to fit it."""

    first_step: ClassVar[str | None] = "first head as initialised"

    def begin(self, context: Context) -> None:
        """Freeze it in every step."""
        context.student.trained_head.heads[0].requires_grad_(False)


@dataclass
class StudentContrast(Contrast):
    """Supervised contrast within the student, by ground truth: eq. 7 with R from the ground truth and no S.

    The paper leaves open whether background takes part; it does in the authors' code, and must where a step has a
    single new class. Unless a part trains step 0 too, the loss is not used there, so that all rows of the ablation
    start from one model.
    """

    weight: float = 0.01
    temperature: float = 0.07
    stride: int = 16

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ L_cd`` among the anchors."""
        if view.step.index == 0 and self.first_step is None:
            return {}
        size = grid_size(view, self.stride)
        regions = COMPLETE if view.step.complete else VISIBLE
        labels = keep_regions(labels_on_grid(view.labels, size), regions, view.step)
        features, ids = self.anchors(pixels_on_grid(view.student.embedding, size), labels, view.step.num_classes)
        features = features.to(view.computed_in)
        loss = losses.contrastive_distillation_global(
            features,
            ids,
            features.detach()[:0],
            ids[:0],
            temperature=self.temperature,
            only_members=view.fused,
        )
        return {"contrast": self.weight * loss}

    @abstractmethod
    def anchors(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """(B·h·w, D) pixels and (B, h, w) labels → (N, D) features and (N,) ids that are contrasted."""


@dataclass
class PixelContrast(StudentContrast):
    """Every pixel is an anchor (UCD, Table "ab_pcont", "pixel contrastive")."""

    def anchors(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The pixels themselves."""
        return pixels, labels.flatten()


@dataclass
class PixelContrastFromTheStart(PixelContrast):
    """At step 0 too, to shape the features that later steps begin with."""

    first_step: ClassVar[str | None] = "pixel contrast"


@dataclass
class SegmentContrast(StudentContrast):
    """The mean of every class in every image is an anchor ("segment contrastive").

    The paper does not say over what it averages; over the whole batch, a class would have no second mean as a positive.
    """

    def anchors(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """(B·C, D) means; classes that an image lacks are left out by their id."""
        grouped = pixels.reshape(labels.shape[0], -1, pixels.shape[-1])
        means, ids = losses.class_means(grouped, labels.flatten(1), num_classes=num_classes)
        return means.flatten(0, 1), ids.flatten()


@register_method(
    "ucd", "contrastive distillation of all pixels of a batch, weighted by how certain the teacher is", paper=PAPER
)
def ucd(
    weight: Weight = 0.01,
    temperature: Temperature = 0.07,
    uncertainty: bool = True,
    student: str = "old+new",
    teacher: str = "old",
    denominator: Denominator = "negatives",
    detach_contrast: bool = False,
    stride: Stride = 16,
    frozen_head: bool = False,
    released: bool = False,
) -> Sequence[Part]:
    """``L = L_ce(M̄) + λ_ucd L_ucd``; summed with another method, that one's segmentation loss replaces ``L_ce(M̄)``.

    ``student`` and ``teacher`` choose whose pixels take part, as in the paper's Table "ab_ucd": sums of ``old``,
    ``new`` and ``background``. Its rows are old+new+background for both; old+new for both; and the defaults.
    ``frozen_head`` keeps the first head after step 0. ``released`` is what the authors' code does: the first head is
    never trained, the contrast is detached, ignored pixels count as background, and the mean is over anchors that
    have a positive.
    """
    detach_contrast = detach_contrast or released
    contrast = ContrastiveDistillation(
        weight, temperature, uncertainty, student, teacher, denominator, detach_contrast, stride, released
    )
    frozen = [NeverTrainedFirstHead()] if released else [FrozenFirstHead()] if frozen_head else []
    return [default(ExtendedMapCrossEntropy()), contrast, *frozen]


@register_method("cd", "contrastive distillation without uncertainty: the ablation of ucd with σ = 1", paper=PAPER)
def cd(weight: Weight = 0.01, temperature: Temperature = 0.07, stride: Stride = 16) -> Sequence[Part]:
    """``L = L_ce(M̄) + λ L_cd`` (UCD eq. 7)."""
    contrast = ContrastiveDistillation(weight, temperature, uncertainty=False, stride=stride)
    return [default(ExtendedMapCrossEntropy()), contrast]


@register_method("pixel", "contrast among the student's pixels by ground truth: an ablation of ucd", paper=PAPER)
def pixel(
    weight: Weight = 0.01, temperature: Temperature = 0.07, stride: Stride = 16, from_the_start: bool = False
) -> Sequence[Part]:
    """``L = L_ce + λ L_pixel``; ``from_the_start`` at step 0 too, for example to shape the features of ``analytic``."""
    contrast = PixelContrastFromTheStart if from_the_start else PixelContrast
    return [default(CrossEntropy()), contrast(weight, temperature, stride)]


@register_method("segment", "contrast among the student's class means by ground truth: an ablation of ucd", paper=PAPER)
def segment(weight: Weight = 0.01, temperature: Temperature = 0.07, stride: Stride = 16) -> Sequence[Part]:
    """``L = L_ce + λ L_segment``."""
    return [default(CrossEntropy()), SegmentContrast(weight, temperature, stride)]
