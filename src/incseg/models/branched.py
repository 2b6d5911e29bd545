"""SSUL's head: a small branch of layers per step, one for background and one for what no class describes yet."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from incseg.batch import ScoreKind
from incseg.models.heads import TrainedHead

UNKNOWN, BACKGROUND_BRANCH = 0, 1  # of its branches; the others follow, one per step
CERTAIN = -1e-6  # as u + b comes closer to 0, σ(u) + σ(b) comes to 1, whose logit is infinite


class BranchedHead(TrainedHead):
    """One yes-or-no per class, background and *unknown* among them, each branch with layers of its own (SSUL).

    A branch is a 3×3 convolution, batch normalisation, ReLU and a 1×1 convolution. What is unknown counts as background
    in the end: in evaluation the probability of background is ``σ(z_unknown) + σ(z_0)``, and its score the logit of
    that. While it is trained the head gives one score more than there are classes: that of unknown, after all others.
    """

    kind: ClassVar[ScoreKind] = "branched"

    def __init__(self, channels: int, head_sizes: Sequence[int], kernel_size: int = 1):
        first, *later = head_sizes
        super().__init__(channels, [1, 1, first - 1, *later], kernel_size)

    def new_head(self, classes: int) -> nn.Module:
        """A branch."""
        branch = nn.Sequential(
            nn.Conv2d(self.channels, self.channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(self.channels),
            nn.ReLU(),
            super().new_head(classes),
        )
        return branch.to(memory_format=torch.channels_last)  # as in a network that is built with it

    @property
    def head_sizes(self) -> list[int]:
        """How many classes each step added, background among the first; unknown is no class."""
        _, background, first, *later = (len(branch[-1].get_parameter("bias")) for branch in self.branches)
        return [background + first, *later]

    @property
    def branches(self) -> list[nn.Sequential]:
        """Of unknown, of background, and of every step."""
        return [branch for branch in self.heads if isinstance(branch, nn.Sequential)]

    def logits(self, embedding: Tensor) -> Tensor:
        """(B, D, h, w) → (B, C, h, w) scores; in training (B, C + 1, h, w), unknown last."""
        unknown, background, *classes = (branch(embedding) for branch in self.heads)
        if self.training:
            return torch.cat([background, *classes, unknown], dim=1)
        return torch.cat([_logit_of_either(unknown, background), *classes], dim=1)

    @torch.no_grad()
    def begin_with_unknown(self) -> None:
        """Let every class of the newest branch begin as what is unknown."""
        *shared, last = self.branches[UNKNOWN]
        newest = self.branches[-1]
        for mine, theirs in zip(newest, shared, strict=False):
            mine.load_state_dict(theirs.state_dict())
        for name, parameter in newest[-1].named_parameters():
            parameter.copy_(last.get_parameter(name).expand_as(parameter))


def _logit_of_either(u: Tensor, b: Tensor) -> Tensor:
    """The logit of ``σ(u) + σ(b)``, ``log(eᵘ + eᵇ + 2eᵘ⁺ᵇ) − log(1 − eᵘ⁺ᵇ)``; something large where that exceeds 1."""
    both = (u + b).clamp_max(CERTAIN)
    return torch.cat([u, b, both + math.log(2)], dim=1).logsumexp(dim=1, keepdim=True) - (1 - both.exp()).log()
