"""SDR: keep old classes at their prototypes, attract features of a class, repel classes, and keep features sparse."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg import losses
from incseg.batch import View
from incseg.methods.parsing import register_method
from incseg.methods.part import LossTerm, Part, Weight, default
from incseg.methods.pixels import keep_regions, labels_on_grid
from incseg.methods.unbiased import UnbiasedCrossEntropy, UnbiasedDistillation
from incseg.models import Segmenter


def _features(view: View) -> Tensor:
    """(B·h·w, D) the encoder's last stage, pixel by pixel, image after image."""
    return view.student.stages[-1].movedim(1, -1).flatten(0, 2)


def _truth(view: View) -> Tensor:
    """(B, h, w) ground truth at the stage's size."""
    height, width = view.student.stages[-1].shape[-2:]
    return labels_on_grid(view.labels, (height, width))


def _teachers_classes(view: View) -> Tensor:
    """(B·h·w,) the old class that the teacher finds where the ground truth is background, −1 elsewhere."""
    assert view.teacher is not None
    truth = _truth(view)
    height, width = truth.shape[-2:]
    probs = F.adaptive_avg_pool2d(view.teacher.logits.softmax(dim=1), (height, width)).movedim(1, -1)
    labels = losses.extended_map(truth, probs, num_classes=view.step.num_classes)[0]
    return keep_regions(labels, "old", view.step).flatten()


@dataclass
class Prototypes(LossTerm):
    """``λ_pm L_pm + λ_a L_attraction + λ_r L_repulsion`` around the classes' prototypes, after step 0.

    A prototype is the running mean of a class' features while it is learnt. Background has none, that is, 0: what is
    background now may be another class later.
    """

    needs_teacher: ClassVar[bool] = True
    needs_stages: ClassVar[bool] = True
    joins_images: ClassVar[bool] = True
    matching: float = 0.01
    attraction: float = 1e-3
    repulsion: float = 1e-3

    def losses(self, view: View) -> dict[str, Tensor]:
        """Old classes are those the teacher finds in background; the others, and background, are the ground truth's."""
        classes, features, truth = view.step.num_classes, _features(view), _truth(view).flatten()
        sums, counts = self._with_this_batch(view)
        prototypes, known = sums / counts.clamp_min(1).unsqueeze(1), counts > 0
        old, found = losses.class_means(
            features[None], _teachers_classes(view)[None], num_classes=classes, across_processes=True
        )
        means, ids = losses.class_means(features[None], truth[None], num_classes=classes, across_processes=True)
        matching = losses.prototype_matching(old[0], prototypes, present=(found[0] >= 0) & known)
        attraction = losses.attraction(features, truth, prototypes, num_classes=classes, across_processes=True)
        return {
            "prototypes": self.matching * matching,
            "attraction": self.attraction * attraction,
            "repulsion": self.repulsion * losses.repulsion(means[0], ids[0] >= 0),
        }

    def observe(self, view: View, student: Segmenter) -> None:  # noqa: ARG002
        """Add this batch's pixels of the new classes to their running sums, those of all processes together."""
        self.memory["sums"], self.memory["counts"] = self._with_this_batch(view)

    def _with_this_batch(self, view: View) -> tuple[Tensor, Tensor]:
        """(C, D) sums and (C,) counts of the new classes' pixels so far, this batch included, without gradient."""
        classes = view.step.num_classes
        features = _features(view).detach().float()
        labels = keep_regions(_truth(view), "new", view.step).flatten()
        members = F.one_hot(labels.where(labels >= 0, classes), classes + 1)[:, :classes].to(features.dtype)
        found = losses.sum_over_processes(torch.cat([members.T @ features, members.sum(dim=0)[:, None]], dim=1))
        return self._joined("sums", found[:, :-1]), self._joined("counts", found[:, -1])

    def _joined(self, key: str, new: Tensor) -> Tensor:
        so_far = self.memory.get(key, new[:0])
        return torch.cat([so_far, torch.zeros_like(new[len(so_far) :])]) + new


@dataclass
class Sparsity(LossTerm):
    """``λ_s L_sparsity``, from step 0 on."""

    needs_stages: ClassVar[bool] = True
    joins_images: ClassVar[bool] = True
    first_step: ClassVar[str | None] = "sparsity"
    weight: float = 1e-3

    def losses(self, view: View) -> dict[str, Tensor]:
        """Classes are those of the ground truth, background among them."""
        classes = view.step.num_classes
        loss = losses.sparsity(_features(view), _truth(view).flatten(), num_classes=classes, across_processes=True)
        return {"sparsity": self.weight * loss}


@register_method(
    "sdr",
    "prototypes, attraction, repulsion and sparsity of the encoder's features, with unbiased distillation",
    paper="Michieli and Zanuttigh, Continual Semantic Segmentation via Repulsion-Attraction of Sparse and "
    "Disentangled Latent Representations, CVPR 2021",
)
def sdr(
    prototype_weight: Weight = 0.01,
    attraction: Weight = 1e-3,
    repulsion: Weight = 1e-3,
    sparsity: Weight = 1e-3,
    kd_weight: Weight = 100.0,
) -> Sequence[Part]:
    """``L = L_seg + λ_kd L_kd + λ_pm L_pm + λ_a L_a + λ_r L_r + λ_s L_s``; in ``mib+sdr`` MiB brings the first two."""
    return [
        default(UnbiasedCrossEntropy()),
        default(UnbiasedDistillation(kd_weight)),
        Prototypes(prototype_weight, attraction, repulsion),
        Sparsity(sparsity),
    ]
