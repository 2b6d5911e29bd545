"""Heads: how features become a score per class. The class of a pixel is the arg-max of its scores, for every head.

A head takes the decoder's embedding and the encoder's stages and gives scores on a coarse grid; it says how scores
become probabilities, and grows with every step. Softmax and sigmoid heads are trained, and the one in ``branched.py``;
that in ``closed_form.py`` is solved.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from incseg.batch import ScoreKind


class Head(nn.Module, ABC):
    """Features → scores (B, C, h, w) → classes and probabilities."""

    kind: ClassVar[ScoreKind]
    """What its scores mean."""

    @property
    @abstractmethod
    def in_words(self) -> str:
        """What it is, for the model card."""

    @property
    @abstractmethod
    def head_sizes(self) -> list[int]:
        """How many classes each step added, background among the first."""

    @abstractmethod
    def forward(self, embedding: Tensor, stages: Sequence[Tensor]) -> Tensor:
        """Scores (B, C, h, w) of the embedding (B, D, h', w') and the encoder's stages, finest first."""

    @abstractmethod
    def probabilities(self, scores: Tensor) -> Tensor:
        """(B, C, …) scores → probabilities that sum to 1 over the classes."""


class TrainedHead(Head):
    """One convolution per step (or a branch), so that what an earlier step learnt can be kept, frozen or copied.

    They are 1×1, unless a model from elsewhere has them wider.
    """

    def __init__(self, channels: int, head_sizes: Sequence[int], kernel_size: int = 1):
        super().__init__()
        self.channels, self.kernel_size = channels, kernel_size
        self.heads = nn.ModuleList()
        for size in head_sizes:
            self.grow(size)

    def grow(self, classes: int) -> None:
        """Add a head for that many new classes, initialised as PyTorch does, like those of MiB, PLOP and UCD."""
        head = self.new_head(classes)
        if self.heads:
            head.to(next(self.parameters()).device)
        self.heads.append(head.train(self.training))

    @property
    def in_words(self) -> str:
        """Its kind; its weights are trained."""
        return f"{self.kind}, trained"

    def new_head(self, classes: int) -> nn.Module:
        """What a step adds: a convolution."""
        return nn.Conv2d(self.channels, classes, self.kernel_size, padding=self.kernel_size // 2)

    def forward(self, embedding: Tensor, stages: Sequence[Tensor] = ()) -> Tensor:  # noqa: ARG002 - part of every head
        """(B, D, h, w) → (B, C, h, w) logits, in float32 also under mixed precision.

        Probabilities and entropies depend on small differences of logits, of student and teacher alike.
        """
        kind = embedding.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self.logits(embedding.float())
        return self.logits(embedding)

    def logits(self, embedding: Tensor) -> Tensor:
        """The same in the type of the embedding."""
        return torch.cat([head(embedding) for head in self.heads], dim=1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Softmax over the classes; :class:`SigmoidHead` says why also of its scores."""
        return scores.softmax(dim=1)

    def _convolutions(self) -> list[nn.Conv2d]:
        return [head for head in self.heads if isinstance(head, nn.Conv2d)]


class SoftmaxHead(TrainedHead):
    """Classes compete; background is one of them, in the first convolution."""

    kind: ClassVar[ScoreKind] = "softmax"

    @property
    def head_sizes(self) -> list[int]:
        """How many classes each step added, background among the first."""
        return [head.out_channels for head in self._convolutions()]

    @torch.no_grad()
    def balance_new_head(self) -> None:
        """Start the newest head from background, sharing its probability equally (MiB).

        Every new class takes the weight of background, and it and background both take the bias ``b₀ − log(n+1)``:
        softmax then splits the old probability of background evenly and leaves the old classes untouched.
        """
        first, newest = self._convolutions()[0], self._convolutions()[-1]
        if first is newest:
            return
        share = _bias(first)[0] - math.log(newest.out_channels + 1)
        newest.weight.copy_(first.weight[:1].expand_as(newest.weight))
        _bias(newest).fill_(share)
        _bias(first)[0] = share


class SigmoidHead(TrainedHead):
    """One yes-or-no per foreground class, ``s_c = σ(z_c)``; background is where none says yes (DKD, STAR).

    The yes is ``s_c > 0.5``, that is ``z_c > 0``, and the surest yes wins. So background has a score of 0 everywhere
    and nothing to learn, and the class is the arg-max of the scores as for every head.

    Probabilities are those of independent answers ``s_c`` given that at most one is yes, because a pixel shows one
    thing: "no yes" has ``Π_k (1−s_k)`` and "only c" has ``s_c/(1−s_c) Π_k (1−s_k)``, in proportion. As ``s_c/(1−s_c)``
    is ``exp z_c``, that is ``p(0) = 1/(1 + Σ_k exp z_k)`` and ``p(c) = exp z_c p(0)``: the softmax of the scores, with
    background's 0 among them. It sums to 1, and its arg-max is the class everywhere.
    """

    kind: ClassVar[ScoreKind] = "sigmoid"

    def __init__(self, channels: int, head_sizes: Sequence[int], kernel_size: int = 1):
        super().__init__(channels, [head_sizes[0] - 1, *head_sizes[1:]], kernel_size)

    @property
    def head_sizes(self) -> list[int]:
        """How many classes each step added; background, among the first, has no weights."""
        first, *later = (head.out_channels for head in self._convolutions())
        return [first + 1, *later]

    def logits(self, embedding: Tensor) -> Tensor:
        """(B, D, h, w) → (B, C, h, w): 0 for background, then the logit of every class."""
        return F.pad(super().logits(embedding), (0, 0, 0, 0, 1, 0))


def _bias(head: nn.Conv2d) -> Tensor:
    assert head.bias is not None
    return head.bias
