"""The values that travel: what the loader gives, what a network returns, what a method looks at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from incseg.protocol import BACKGROUND, SALIENT, Step
from incseg.upsampling import CoarseLogits, Scores, full_size, interpolate

Derived = TypeVar("Derived")

ScoreKind = Literal["softmax", "sigmoid", "branched", "closed-form"]
"""What a head's scores mean: logits of classes that compete, one yes-or-no per class, in one layer or in branches with
one for what is unknown, or solved in closed form."""


class Batch(NamedTuple):
    """Images and their ground truth as the step may see it.

    Attributes:
        images: (B, 3, H, W) uint8 RGB; the network normalises.
        labels: (B, H, W) int64 channels: 0 background, 255 ignored; uint8 on the way from a loading process.
        replayed: (B,) int64, the old class a replayed image was kept for, 0 for the step's own images; None where
            nothing is ever replayed.
        salient: (B, H, W) bool, where background stands out by a saliency map; None where no part asks for it, or the
            data has no maps.
    """

    images: Tensor
    labels: Tensor
    replayed: Tensor | None = None
    salient: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same on a device, without waiting for it; labels become int64 there, as bytes are quicker to send."""
        sent = self._map(lambda field: field.to(device, non_blocking=True))
        return sent._replace(labels=sent.labels.long())

    def clone(self) -> "Batch":
        """In memory of its own."""
        return self._map(Tensor.clone)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Every field that is there, changed."""
        images, labels, *others = self
        return Batch(change(images), change(labels), *(None if field is None else change(field) for field in others))

    def telling_salient(self) -> "Batch":
        """Labels among which salient background has a number of its own, taken apart."""
        salient = self.labels == SALIENT
        return self._replace(labels=self.labels.masked_fill(salient, BACKGROUND), salient=salient)

    def pieces(self, number: int) -> "list[Batch]":
        """Cut into so many of equal size, which the number of images must allow.

        Every piece has its share of the replayed images, which come after the others.
        """
        return [self._map(itemgetter(slice(first, None, number))) for first in range(number)]


class Outputs(NamedTuple):
    """What a segmenter returns.

    Attributes:
        logits: (B, C, h, w) as the classifier gives them, at the embedding's size.
        embedding: (B, D, h, w), the decoder's output.
        stages: the encoder's feature maps, finest first; empty unless a part says ``needs_stages``.
        align_corners: how this network's logits are brought to the size of the image.
        raw_stages: the stages before their last activation, or as they are where they do not end in one, in the type
            the network computes in; empty unless a part says ``needs_raw_stages``.
        head: what the logits mean. The probabilities of every trained head are their softmax.
    """

    logits: Tensor
    embedding: Tensor
    stages: Sequence[Tensor]
    align_corners: bool = False
    raw_stages: Sequence[Tensor] = ()
    head: ScoreKind = "softmax"

    def scores_for(self, image: Tensor) -> CoarseLogits:
        """The logits, meant for the size of an image or label map (…, H, W)."""
        height, width = image.shape[-2:]
        return CoarseLogits(self.logits, (height, width), self.align_corners)


@dataclass(frozen=True)
class View:
    """Everything a method may look at for one batch. Immutable; derived tensors are computed once and shared."""

    batch: Batch
    student: Outputs
    teacher: Outputs | None
    step: Step
    relabelled: Tensor | None = None
    enlarge: Callable[[CoarseLogits], Scores] = interpolate
    """How logits are prepared for losses at the size of the image; kernels take them as they are."""
    fused: bool = False
    """Whether a loss may be computed by kernels of our own, where there are some."""
    computed_in: torch.dtype = torch.float32
    """The type in which the network computed its features: a loss whose kernels take that may do so too."""
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was computed from the outputs, once, for every part and also across relabelling."""

    @property
    def labels(self) -> Tensor:
        """(B, H, W) raw ground truth, always."""
        return self.batch.labels

    @property
    def replayed(self) -> Tensor:
        """(B,) the old class a replayed image was kept for, 0 for the step's own images."""
        return self.labels.new_zeros(len(self.labels)) if self.batch.replayed is None else self.batch.replayed

    @property
    def salient(self) -> Tensor | None:
        """(B, H, W) where background is salient, None without maps: only for a part that says ``uses_saliency``."""
        return self.batch.salient

    @property
    def targets(self) -> Tensor:
        """(B, H, W) what the segmentation loss aims at: the ground truth, or what a part's ``relabel`` made of it."""
        return self.labels if self.relabelled is None else self.relabelled

    @property
    def student_scores(self) -> Scores:
        """(B, C, H, W) the student's logits for losses at the size of the image, which may be kept coarse."""
        return self._once("student", lambda: self.enlarge(self.student.scores_for(self.labels)))

    @property
    def teacher_scores(self) -> Scores:
        """(B, K, H, W) the teacher's logits, likewise."""
        teacher = self.teacher
        assert teacher is not None, "a part that needs the teacher must say so with needs_teacher"
        return self._once("teacher", lambda: self.enlarge(teacher.scores_for(self.labels)))

    @property
    def student_logits(self) -> Tensor:
        """(B, C, H, W) the student's logits at the size of the image: memory that ``student_scores`` may save."""
        return self._once("student at full size", lambda: full_size(self.student_scores))

    @property
    def teacher_logits(self) -> Tensor:
        """(B, K, H, W) the teacher's logits at the size of the image."""
        return self._once("teacher at full size", lambda: full_size(self.teacher_scores))

    def _once(self, name: str, compute: Callable[[], Derived]) -> Derived:
        if name not in self.derived:
            self.derived[name] = compute()
        found: Derived = self.derived[name]
        return found


def in_float32(outputs: Outputs) -> Outputs:
    """Outputs of a network that ran in a shorter type, as the losses want them.

    Raw stages stay as they are: they are large, and kernels that compare them compute in float32 all the same.
    """
    logits, embedding = outputs.logits.float(), outputs.embedding.float()
    return outputs._replace(logits=logits, embedding=embedding, stages=[stage.float() for stage in outputs.stages])


def upsample(outputs: Outputs, like: Tensor) -> Tensor:
    """The logits (B, C, h, w), bilinearly interpolated to the last two axes of ``like``."""
    return interpolate(outputs.scores_for(like))
