"""Heads: how features become a score per class. The class of a pixel is the arg-max of its scores, for every head.

A head takes the decoder's embedding and the encoder's stages and gives scores on a coarse grid; it says how scores
become probabilities, and grows with every step. The softmax head is trained; the one in ``closed_form.py`` is solved.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Head(nn.Module, ABC):
    """Features → scores (B, C, h, w) → classes and probabilities."""

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


class SoftmaxHead(Head):
    """One convolution per step, so that what an earlier step learnt can be kept, frozen or copied.

    Part 0 holds background and the first classes, a later part one step's classes. They are 1×1, unless a model from
    elsewhere has them wider.
    """

    def __init__(self, channels: int, head_sizes: Sequence[int], kernel_size: int = 1):
        super().__init__()
        self.channels, self.kernel_size = channels, kernel_size
        self.heads = nn.ModuleList()
        for size in head_sizes:
            self.grow(size)

    @property
    def head_sizes(self) -> list[int]:
        """How many classes each head holds, background among the first."""
        return [head.out_channels for head in self._convolutions()]

    def grow(self, classes: int) -> None:
        """Add a head for that many new classes, initialised as PyTorch does, like those of MiB, PLOP and UCD."""
        head = nn.Conv2d(self.channels, classes, self.kernel_size, padding=self.kernel_size // 2)
        if self.heads:
            head.to(_bias(self._convolutions()[0]).device)
        self.heads.append(head)

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

    def probabilities(self, scores: Tensor) -> Tensor:
        """Softmax over the classes."""
        return scores.softmax(dim=1)

    def forward(self, embedding: Tensor, stages: Sequence[Tensor] = ()) -> Tensor:  # noqa: ARG002 - part of every head
        """(B, D, h, w) → (B, C, h, w) logits, in float32 also under mixed precision.

        Probabilities and entropies depend on small differences of logits, of student and teacher alike.
        """
        kind = embedding.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self.forward(embedding.float())
        return torch.cat([head(embedding) for head in self.heads], dim=1)

    def _convolutions(self) -> list[nn.Conv2d]:
        return [head for head in self.heads if isinstance(head, nn.Conv2d)]


def _bias(head: nn.Conv2d) -> Tensor:
    assert head.bias is not None
    return head.bias
