"""The simpler contrastive losses of the paper's ablation: within the student, by ground truth, no distillation."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods.base import Contrast, Part, default
from incseg.methods.finetune import CrossEntropy
from incseg.methods.pixels import grid_size, labels_on_grid, pixels_on_grid, within
from incseg.methods.registry import method
from incseg.methods.settings import Stride, Temperature, Weight
from incseg.methods.ucd import PAPER

VISIBLE = "new+background"  # what the ground truth of a step shows


@dataclass
class StudentContrast(Contrast):
    """Supervised contrast within the student, by ground truth: eq. 7 with R from the ground truth and no S.

    The paper leaves open whether background takes part; it does in the authors' code, and must where a step has a
    single new class. The loss rests at step 0, so that all rows of the ablation start from one model.
    """

    weight: float = 0.01
    temperature: float = 0.07
    stride: int = 16

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ L_cd`` among the anchors."""
        if view.step.index == 0:
            return {}
        size = grid_size(view, self.stride)
        labels = within(labels_on_grid(view.labels, size), VISIBLE, view.step)
        features, ids = self.anchors(pixels_on_grid(view.student.embedding, size), labels, view.step.num_classes)
        loss = losses.contrastive_distillation_global(
            features, ids, features.detach()[:0], ids[:0], temperature=self.temperature
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
class SegmentContrast(StudentContrast):
    """The mean of every class in every image is an anchor ("segment contrastive").

    Averaged over the whole batch, no class would have a second mean to be drawn to; the paper does not say which.
    """

    def anchors(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """(B·C, D) means; classes that an image lacks are left out by their id."""
        grouped = pixels.reshape(labels.shape[0], -1, pixels.shape[-1])
        means, ids = losses.class_means(grouped, labels.flatten(1), num_classes=num_classes)
        return means.flatten(0, 1), ids.flatten()


@method("pixel", "contrast among the student's pixels by ground truth: an ablation of ucd", paper=PAPER)
def pixel(weight: Weight = 0.01, temperature: Temperature = 0.07, stride: Stride = 16) -> Sequence[Part]:
    """``L = L_ce + λ L_pixel``."""
    return [default(CrossEntropy()), PixelContrast(weight, temperature, stride)]


@method("segment", "contrast among the student's class means by ground truth: an ablation of ucd", paper=PAPER)
def segment(weight: Weight = 0.01, temperature: Temperature = 0.07, stride: Stride = 16) -> Sequence[Part]:
    """``L = L_ce + λ L_segment``."""
    return [default(CrossEntropy()), SegmentContrast(weight, temperature, stride)]
