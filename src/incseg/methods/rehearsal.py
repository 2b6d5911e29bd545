"""EM for incremental segmentation: complete the missing labels, then learn from new images and a few old ones.

A reconstruction. The paper's code was never published and its settings could not be verified; what follows is the
expectation-maximisation its abstract describes, with the constants of later methods that keep as many images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.config import HeadKind
from incseg.curriculum.curriculum import Library
from incseg.loading.replay import Replay
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Count, Part, Share, Weight
from incseg.protocol import BACKGROUND

Kept = tuple[int, int]  # (the image's index in the dataset, the step whose labels it has)


@dataclass
class RehearsalMemory(Part):
    """A few images of earlier steps under the labels they had then, balanced over classes; half of every batch.

    Images are kept by their index in the dataset. After each step the memory is filled again from what it held and from
    the step's images: the classes take turns, each taking a random image that is labelled with it.
    """

    rehearses: ClassVar[bool] = True
    needs_new_classes: ClassVar[bool] = True
    size: int = 100

    def replay(self, context: Context) -> Replay | None:
        """What was kept so far, or is given as such; nothing at step 0."""
        if "images" not in self.memory:
            given = context.library.given(completed=True)
            return None if given is None else Replay(given)
        kept = (self.memory[name].tolist() for name in ("images", "steps", "channels"))
        return Replay(context.library.kept(*kept))

    def end(self, context: Context) -> None:
        """Choose again, now that there are more classes."""
        now = context.step.index
        shown = {(i, now): channels for i, channels in context.library.shown(now).items()}
        shown |= self._shown_by_kept(context.library)
        generator = torch.Generator().manual_seed(context.seed)
        chosen = _take_turns(shown, context.step.seen, self.size, generator)
        images, steps = zip(*chosen, strict=True)
        device = context.student.mean.device
        self.memory = {
            "images": torch.tensor(images, device=device),
            "steps": torch.tensor(steps, device=device),
            "channels": torch.tensor(list(chosen.values()), device=device),
        }

    def _shown_by_kept(self, library: Library) -> dict[Kept, frozenset[int]]:
        if "images" not in self.memory:
            return {}
        steps = self.memory["steps"].tolist()
        shown = {step: library.shown(step) for step in set(steps)}
        return {(i, step): shown[step][i] for i, step in zip(self.memory["images"].tolist(), steps, strict=True)}


@dataclass
class GivenOldImages(Part):
    """Old images that a person has kept, in half of every batch: for methods that do not rehearse by themselves."""

    def replay(self, context: Context) -> Replay | None:
        """With the labels they have; their background is unlabelled, so that other parts decide what it is."""
        given = context.library.given()
        return None if given is None else Replay(given)


def _take_turns(
    shown: Mapping[Kept, frozenset[int]], channels: Sequence[int], size: int, generator: torch.Generator
) -> dict[Kept, int]:
    """Which images to keep, each with the class it is kept for: the classes in turn, until there are enough.

    The order of the classes is random, so that with more classes than places it is not always the same ones that get
    no image.
    """
    candidates = list(shown)
    shuffled = [candidates[i] for i in torch.randperm(len(candidates), generator=generator).tolist()]
    turns = [channels[i] for i in torch.randperm(len(channels), generator=generator).tolist()]
    waiting = {c: [image for image in shuffled if c in shown[image]] for c in turns}
    chosen: dict[Kept, int] = {}
    while len(chosen) < size and any(waiting.values()):
        for channel, images in waiting.items():
            images[:] = [image for image in images if image not in chosen]
            if images and len(chosen) < size:
                chosen[images.pop()] = channel
    return chosen


@dataclass
class CompletedCrossEntropy(CrossEntropy):
    """Cross-entropy on completed labels, in which rare classes weigh more.

    E-step, at every iteration: background that may hide an old class becomes the teacher's class where its probability
    is at least ``confidence``; background of a kept image, which was labelled before the new classes existed, also
    becomes the student's class where that is a new one with such a probability. The background of the step's own images
    hides no old class where the step is complete; that of a kept image may, as later steps brought classes.
    """

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)
    needs_teacher: ClassVar[bool] = True
    joins_images: ClassVar[bool] = True
    confidence: float = 0.7
    balance: float = 1.0

    def relabel(self, view: View) -> Tensor | None:
        """The E-step."""
        if view.teacher is None:
            return None
        is_kept_image = (view.replayed > 0)[:, None, None]
        may_hide_old = is_kept_image | (not view.step.complete)
        predicted, highest = losses.prediction(view.teacher_scores)
        by_teacher = may_hide_old & (highest >= self.confidence)
        completed = view.labels.where((view.labels != BACKGROUND) | ~by_teacher, predicted)
        predicted, highest = losses.prediction(view.student_scores)
        is_new = (predicted >= view.step.old_classes) & (highest >= self.confidence) & is_kept_image
        return completed.where((completed != BACKGROUND) | ~is_new, predicted)

    def losses(self, view: View) -> dict[str, Tensor]:
        """The M-step's loss; plain cross-entropy at step 0."""
        if view.teacher is None:
            return super().losses(view)
        counts = losses.class_counts(view.targets, num_classes=view.step.num_classes)
        counts = losses.sum_over_processes(counts)
        loss = losses.balanced_cross_entropy(view.student_scores, view.targets, power=self.balance, counts=counts)
        # Each process has its share of the joined batch's loss; training takes the mean over processes, not the sum.
        return {"segmentation": losses.process_count() * loss}


@register_method(
    "emseg",
    "complete the missing labels, rehearse a class-balanced memory of old images, weigh rare classes more",
    paper="after Yan et al., An EM Framework for Online Incremental Learning of Semantic Segmentation, MM 2021",
)
def emseg(memory: Count = 100, confidence: Share = 0.7, balance: Weight = 1.0) -> Sequence[Part]:
    """``L = Σ_p w(Ŷ_p) ce_p / Σ_p w(Ŷ_p)`` on new and kept images with completed labels Ŷ."""
    return [CompletedCrossEntropy(confidence, balance), RehearsalMemory(memory)]
