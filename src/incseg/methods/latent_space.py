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


def _labels(view: View) -> Tensor:
    """(B, h, w) ground truth at the stage's size, with the teacher's class where it is background."""
    truth = _truth(view)
    if view.teacher is None:
        return truth
    height, width = truth.shape[-2:]
    probs = F.adaptive_avg_pool2d(view.teacher.logits.softmax(dim=1), (height, width)).movedim(1, -1)
    return losses.extended_map(truth, probs, num_classes=view.step.num_classes)[0]


@dataclass
class PrototypeMatching(LossTerm):
    """``λ_pm L_pm``: the mean feature of an old class stays where it was when the class was learnt."""

    needs_teacher: ClassVar[bool] = True
    needs_stages: ClassVar[bool] = True
    weight: float = 0.01

    def losses(self, view: View) -> dict[str, Tensor]:
        """Pixels of old classes are those the teacher finds where the ground truth is background."""
        old = keep_regions(_labels(view), "old", view.step)
        classes = view.step.old_classes
        means, ids = losses.class_means(
            _features(view)[None], old.reshape(1, -1), num_classes=classes, across_processes=True
        )
        known = self.memory["counts"][:classes] > 0
        prototypes = self.memory["sums"][:classes] / self.memory["counts"][:classes].clamp_min(1).unsqueeze(1)
        loss = losses.prototype_matching(means[0], prototypes, present=(ids[0] >= 0) & known)
        return {"prototypes": self.weight * loss}

    def observe(self, view: View, student: Segmenter) -> None:  # noqa: ARG002
        """Add this batch's pixels of the new classes to their running sums, those of all processes together."""
        classes = view.step.num_classes
        features = _features(view).detach().float()
        labels = keep_regions(_truth(view), "new", view.step).flatten()
        members = F.one_hot(labels.where(labels >= 0, classes), classes + 1)[:, :classes].to(features.dtype)
        found = losses.sum_over_processes(torch.cat([members.T @ features, members.sum(dim=0)[:, None]], dim=1))
        for key, new in (("sums", found[:, :-1]), ("counts", found[:, -1])):
            so_far = self.memory.get(key, new[:0])
            self.memory[key] = torch.cat([so_far, torch.zeros_like(new[len(so_far) :])]) + new


@dataclass
class LatentStructure(LossTerm):
    """``λ_a L_attraction + λ_r L_repulsion + λ_s L_sparsity`` on foreground pixels, from step 0 on."""

    needs_stages: ClassVar[bool] = True
    first_step: ClassVar[str | None] = "latent structure"
    attraction: float = 1e-3
    repulsion: float = 1e-3
    sparsity: float = 1e-3

    def losses(self, view: View) -> dict[str, Tensor]:
        """Classes are those of the ground truth and, where it is background, of the teacher."""
        classes = view.step.num_classes
        labels = keep_regions(_labels(view), "old+new", view.step).flatten()
        features = _features(view)
        means, ids = losses.class_means(features[None], labels[None], num_classes=classes, across_processes=True)
        attraction = losses.attraction(features, labels, num_classes=classes, across_processes=True)
        repulsion = losses.repulsion(means[0], ids[0] >= 0)
        sparsity = losses.sparsity(features, labels, num_classes=classes, across_processes=True)
        return {
            "attraction": self.attraction * attraction,
            "repulsion": self.repulsion * repulsion,
            "sparsity": self.sparsity * sparsity,
        }


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
        PrototypeMatching(prototype_weight),
        LatentStructure(attraction, repulsion, sparsity),
    ]
