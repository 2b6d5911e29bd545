"""The simpler contrastive losses of the paper's ablation: within the student, by ground truth, no distillation."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods.base import LossTerm, Part, default
from incseg.methods.finetune import CrossEntropy
from incseg.methods.grid import grid_size, labels_on_grid, pixels_on_grid
from incseg.methods.regions import within
from incseg.methods.registry import method
from incseg.methods.ucd import PAPER

VISIBLE = "new+background"  # what the ground truth of a step shows


@dataclass
class PixelContrast(LossTerm):
    """Supervised contrast among the student's pixels by ground truth (UCD, Table "ab_pcont", "pixel contrastive").

    The paper leaves open whether background takes part; it does in the authors' code, and must where a step has a
    single new class. The loss rests at step 0, so that all rows of the ablation start from one model.
    """

    weight: float = 0.01
    temperature: float = 0.07
    stride: int = 16

    def losses(self, view: View) -> dict[str, Tensor]:
        """eq. 7 with R from the ground truth and no S."""
        if view.step.index == 0:
            return {}
        size = grid_size(view, self.stride)
        labels = within(labels_on_grid(view.labels, size), VISIBLE, view.step)
        features, ids = self._anchors(pixels_on_grid(view.student.embedding, size), labels, view.step.num_classes)
        loss = losses.contrastive_distillation_global(
            features, ids, features.detach()[:0], ids[:0], temperature=self.temperature
        )
        return {"contrast": self.weight * loss}

    def _anchors(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return pixels, labels.flatten()


@dataclass
class SegmentContrast(PixelContrast):
    """The same among class means instead of pixels ("segment contrastive").

    Features are averaged per image and class: averaged over the whole batch, no class would have a second mean to be
    drawn to. The paper does not say which.
    """

    def _anchors(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        grouped = pixels.reshape(labels.shape[0], -1, pixels.shape[-1])
        means, ids = losses.class_means(grouped, labels.flatten(1), num_classes=num_classes)
        return means.flatten(0, 1), ids.flatten()


@method("pixel", "contrast among the student's pixels by ground truth: an ablation of ucd", paper=PAPER)
def pixel(weight: float = 0.01, temperature: float = 0.07, stride: int = 16) -> Sequence[Part]:
    """``L = L_ce + λ L_pixel``."""
    return [default(CrossEntropy()), PixelContrast(weight, temperature, stride)]


@method("segment", "contrast among the student's class means by ground truth: an ablation of ucd", paper=PAPER)
def segment(weight: float = 0.01, temperature: float = 0.07, stride: int = 16) -> Sequence[Part]:
    """``L = L_ce + λ L_segment``."""
    return [default(CrossEntropy()), SegmentContrast(weight, temperature, stride)]
