"""STAR: what is remembered of old classes is replayed as features, to which new heads say no."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg import losses
from incseg.batch import View
from incseg.config import HeadKind
from incseg.errors import InputError
from incseg.losses import FeatureModel, Mixture
from incseg.methods.class_memory import (
    background_as,
    cells_of,
    gather_drift,
    gather_mixtures,
    gather_model,
    labels_of,
    predicted_counts,
)
from incseg.methods.finetune import WeightedBinaryCrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Count, LossTerm, Part, Positive, Weight
from incseg.models import Segmenter
from incseg.models.heads import TrainedHead
from incseg.protocol import BACKGROUND

# The authors' constants for images that may show classes of other steps.
LESS_BACKGROUND = 0.01  # of an earlier step's background that is taken to be of each new class
SEEN_ANYWAY = 0.5  # repetitions of background that are left out


@dataclass
class FeatureReplay(WeightedBinaryCrossEntropy):
    """Binary cross-entropy on images and on made-up features of old classes, which are far from new classes too.

    So that new heads see classes about as often as if the images of all steps were there, as many features of an old
    class are made up as an epoch now lacks, and background is repeated.
    """

    needs_teacher: ClassVar[bool] = True
    joins_images: ClassVar[bool] = True
    needs_new_classes: ClassVar[bool] = True
    first_step: ClassVar[str | None] = "features of the classes"
    separation: float = 0.05
    mixture: int | None = None
    drift: bool = False
    _head: TrainedHead = field(init=False, repr=False, compare=False)
    _missing: Tensor = field(init=False, repr=False, compare=False)
    _replayed: float = field(init=False, repr=False, compare=False)
    _repeats: float = field(init=False, repr=False, compare=False)
    _counted: Tensor = field(init=False, repr=False, compare=False)

    def check_network(self, student: Segmenter) -> None:
        """Features are replayed one by one."""
        if student.trained_head.kernel_size != 1:
            raise InputError("'star' needs a classifier of 1×1 convolutions, and that of this model is wider.")

    def begin(self, context: Context) -> None:
        """Count what an epoch of this step lacks: cells of each old class per iteration, and background."""
        self._head = context.student.trained_head
        if context.teacher is None:
            return
        found, iterations = predicted_counts(context, context.teacher)
        stored = self.memory["pixels"].double().clone()
        if context.images_overlap:
            stored[BACKGROUND] *= max(1 - LESS_BACKGROUND * len(context.step.new), 0)
        seen = found if context.images_overlap else torch.zeros_like(found)
        missing = (stored - seen).clamp_min(0) / iterations
        missing[BACKGROUND] = 0
        ratio = stored[BACKGROUND].item() / max(found[BACKGROUND].item(), 1)
        self._missing, self._replayed = missing.float(), missing.sum().item() / losses.process_count()
        self._repeats = max(ratio - SEEN_ANYWAY, 0) if context.images_overlap else ratio
        # What the next step takes for the cells so far; where images overlap, half of the background was seen before.
        self._counted = stored + found
        if context.images_overlap:
            self._counted = stored.clone()
            self._counted[BACKGROUND] += (1 - SEEN_ANYWAY) * found[BACKGROUND]

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_bce`` with replay, and ``λ L_sad``; at step 0 ``L_bce`` alone."""
        on_images = self.on_images(view)
        if view.teacher is None:
            return {"segmentation": on_images}
        new = view.student.logits[:, view.step.old_classes :].movedim(1, -1).flatten(0, 2)
        newest = self._head.heads[-1]
        weight, bias = newest.get_parameter("weight").flatten(1), newest.get_parameter("bias")
        loss = losses.with_replayed_negatives(
            on_images,
            F.linear(self._made_up(most=len(new)).to(weight.dtype), weight, bias),
            new,
            background_as(view.teacher, view.labels).flatten() == BACKGROUND,
            replayed=self._replayed,
            repeats=self._repeats,
            across_processes=True,
        )
        return {"segmentation": loss, "separation": self.separation * self._separation(view)}

    def _made_up(self, most: int) -> Tensor:
        """(N, D) features of old classes, as often as they are missing; no more than ``most``, which then count more.

        The trainer seeds every iteration, so that they follow from the seed, the iteration and the process.
        """
        number = min(max(round(self._replayed), self._replayed > 0), most)
        model, device = self._remembered(), self._missing.device
        if not number:
            return model.direction[:0]
        classes = torch.multinomial(self._missing, number, replacement=True)
        noise = torch.randn(number, model.direction.shape[1], device=device)
        if self.mixture is None:
            return losses.made_up_features(model, classes, noise, torch.randn(number, device=device))
        mixtures = self._mixtures()
        components = torch.multinomial(mixtures.shares[classes], 1)[:, 0]
        return mixtures.means[classes, components] + mixtures.stds[classes, components] * noise

    def _separation(self, view: View) -> Tensor:
        """Of the batch's centres of the new classes and the directions of the old ones."""
        classes, old = view.step.num_classes, self._remembered().direction[1:]
        unit, labels = F.normalize(cells_of(view.student), dim=1), labels_of(view.student, view.labels).flatten()
        means, ids = losses.class_means(unit[None], labels[None], num_classes=classes, across_processes=True)
        centres, present = F.normalize(means[0], dim=1), ids[0] >= 0
        first = view.step.old_classes
        return losses.similarity_separation(centres[first:], present[first:], old.to(centres.dtype))

    def gather(self, context: Context) -> None:
        """Remember the classes of this step, and where the old ones are now."""
        if context.teacher is not None and self.drift:
            self._follow_drift(*gather_drift(context, context.teacher))
        known = context.step.old_classes if context.teacher is not None else 0
        self._append(gather_model(context), known)
        if self.mixture is not None:
            self._append(gather_mixtures(context, self.mixture), known)
        if context.teacher is not None:
            self.memory["pixels"][:known] = self._counted.float()

    def _append(self, found: FeatureModel | Mixture, known: int) -> None:
        """Add the rows of classes that are not known yet; at step 0 all are new, background among them."""
        for name, value in found._asdict().items():
            self.memory[name] = torch.cat([self.memory[name][:known], value[known:]]) if known else value

    def _follow_drift(self, shifts: Tensor, raw_shifts: Tensor, agreed: Tensor) -> None:
        model, rate = losses.drifted(self._remembered(), shifts, agreed)
        self.memory |= model._asdict()
        if self.mixture is not None:
            self.memory["means"] = self.memory["means"] + (rate.unsqueeze(1) * raw_shifts.float()).unsqueeze(1)

    def _remembered(self) -> FeatureModel:
        return FeatureModel(*(self.memory[name] for name in FeatureModel._fields))

    def _mixtures(self) -> Mixture:
        return Mixture(*(self.memory[name] for name in Mixture._fields))


@dataclass
class OldFeatureDistillation(LossTerm):
    """The embedding stays where the teacher finds an old class in background: old-class features maintaining."""

    needs_teacher: ClassVar[bool] = True
    joins_images: ClassVar[bool] = True
    weight: float = 5.0

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ L_ocfm``."""
        assert view.teacher is not None
        old = background_as(view.teacher, view.labels) > BACKGROUND
        loss = losses.masked_distillation(view.student.embedding, view.teacher.embedding, old, across_processes=True)
        return {"features": self.weight * loss}


@dataclass
class UncertaintyConstraint(LossTerm):
    """Cells that are neither right nor sure are made to decide, by ground truth and, on background, the teacher."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("sigmoid",)
    needs_teacher: ClassVar[bool] = True
    joins_images: ClassVar[bool] = True
    weight: float = 0.1

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ L_uac`` after step 0."""
        assert view.teacher is not None
        truth, found = labels_of(view.student, view.labels), background_as(view.teacher, view.labels)
        labels = torch.where(truth == BACKGROUND, found, truth).flatten()
        probs = view.student.logits.softmax(dim=1).movedim(1, -1).flatten(0, 2)
        return {"uncertainty": self.weight * losses.hesitation(probs, labels, across_processes=True)}


@register_method(
    "star",
    "replay features of old classes from their mean, spread and number, to which new sigmoids say no",
    paper="Chen et al., Saving 100x Storage: Prototype Replay for Reconstructing Training Sample Distribution in "
    "Class-Incremental Semantic Segmentation, NeurIPS 2023",
)
def star(
    feature_weight: Weight = 5.0,
    separation_weight: Weight = 0.05,
    positive_weight: Positive = 4.0,
    mixture: Count | None = None,
    drift: bool = False,
    uncertainty: Weight = 0.0,
) -> Sequence[Part]:
    """``L = L_bce with replay + λ_f L_ocfm + λ_s L_sad``; the weight of a yes is that for VOC.

    ``mixture``: remember so many Gaussians per class instead of one direction (CoGaMiD, with 3). ``drift``: after each
    step, move what is remembered of old classes with the network (Adapter). ``uncertainty``: the weight of Adapter's
    constraint (there 0.1), which makes undecided cells decide.
    """
    replay = FeatureReplay(positive_weight, positive_weight, separation_weight, mixture, drift)
    constraint = [UncertaintyConstraint(uncertainty)] if uncertainty else []
    return [replay, OldFeatureDistillation(feature_weight), *constraint]
