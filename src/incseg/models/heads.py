"""The classifier: one convolution per step, so that what an earlier step learnt can be kept, frozen or copied.

They are 1×1, unless a model from elsewhere has them wider.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class GrowingClassifier(nn.Module):
    """Maps an embedding to logits: head 0 holds background and the first classes, a later head one step's classes."""

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
        """Add a head for that many new classes, Xavier-initialised with zero bias."""
        head = nn.Conv2d(self.channels, classes, self.kernel_size, padding=self.kernel_size // 2)
        nn.init.xavier_uniform_(head.weight)
        nn.init.zeros_(_bias(head))
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

    def forward(self, embedding: Tensor) -> Tensor:
        """(B, D, h, w) → (B, C, h, w)."""
        return torch.cat([head(embedding) for head in self.heads], dim=1)

    def _convolutions(self) -> list[nn.Conv2d]:
        return [head for head in self.heads if isinstance(head, nn.Conv2d)]


def _bias(head: nn.Conv2d) -> Tensor:
    assert head.bias is not None
    return head.bias
