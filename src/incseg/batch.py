"""The values that travel: what the loader gives, what a network returns, what a method looks at."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.protocol import Step

ScoreKind = Literal["softmax", "sigmoid", "closed-form"]
"""What a head's scores mean: logits of classes that compete, one yes-or-no per class, or solved in closed form."""


class Batch(NamedTuple):
    """Images and their ground truth as the step may see it.

    Attributes:
        images: (B, 3, H, W) uint8 RGB; the network normalises.
        labels: (B, H, W) int64 channels: 0 background, 255 ignored.
        replayed: (B,) int64, the old class a replayed image was kept for, 0 for the step's own images; None where
            nothing is ever replayed.
    """

    images: Tensor
    labels: Tensor
    replayed: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same on a device, without waiting for it."""
        replayed = None if self.replayed is None else self.replayed.to(device, non_blocking=True)
        return Batch(self.images.to(device, non_blocking=True), self.labels.to(device, non_blocking=True), replayed)


class Outputs(NamedTuple):
    """What a segmenter returns.

    Attributes:
        logits: (B, C, h, w) as the classifier gives them, at the embedding's size.
        embedding: (B, D, h, w), the decoder's output.
        stages: the encoder's feature maps, finest first; empty unless a part says ``needs_stages``.
        align_corners: how this network's logits are brought to the size of the image.
        raw_stages: the stages before their last activation, or as they are where they do not end in one; empty unless
            a part says ``needs_raw_stages``.
        head: what the logits mean. The probabilities of every trained head are their softmax.
    """

    logits: Tensor
    embedding: Tensor
    stages: Sequence[Tensor]
    align_corners: bool = False
    raw_stages: Sequence[Tensor] = ()
    head: ScoreKind = "softmax"


@dataclass(frozen=True)
class View:
    """Everything a method may look at for one batch. Immutable; derived tensors are computed once and shared."""

    batch: Batch
    student: Outputs
    teacher: Outputs | None
    step: Step
    relabelled: Tensor | None = None
    derived: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
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
    def targets(self) -> Tensor:
        """(B, H, W) what the segmentation loss aims at: the ground truth, or what a part's ``relabel`` made of it."""
        return self.labels if self.relabelled is None else self.relabelled

    @property
    def student_logits(self) -> Tensor:
        """(B, C, H, W) the student's logits at the size of the image."""
        return self._upsampled("student", self.student)

    @property
    def teacher_logits(self) -> Tensor:
        """(B, K, H, W) the teacher's logits at the size of the image."""
        assert self.teacher is not None, "a part that needs the teacher must say so with needs_teacher"
        return self._upsampled("teacher", self.teacher)

    def _upsampled(self, name: str, outputs: Outputs) -> Tensor:
        if name not in self.derived:
            self.derived[name] = upsample(outputs, self.labels)
        return self.derived[name]


def in_float32(outputs: Outputs) -> Outputs:
    """Outputs of a network that ran in a shorter type, as the losses want them."""
    stages, raw = ([stage.float() for stage in stages] for stages in (outputs.stages, outputs.raw_stages))
    logits, embedding = outputs.logits.float(), outputs.embedding.float()
    return outputs._replace(logits=logits, embedding=embedding, stages=stages, raw_stages=raw)


def upsample(outputs: Outputs, like: Tensor) -> Tensor:
    """The logits (B, C, h, w), bilinearly interpolated to the last two axes of ``like``."""
    logits, size = outputs.logits, like.shape[-2:]
    if logits.shape[-2:] == size:
        return logits
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=outputs.align_corners)
