"""Logits on the network's coarse grid, and how they reach the size of the image: bilinear interpolation.

A line y of the image lies at ``(2y + 1) h / 2H − ½`` in a grid of h lines, or at ``y (h − 1)/(H − 1)`` where corners
are aligned; places before the first line count as the first. Both are fractions ``(a y + b)/d`` of whole numbers,
which :class:`Axis` keeps: the matrices here and the kernels in ``losses/coarse`` compute their weights from it.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Size = tuple[int, int]


class Axis(NamedTuple):
    """One axis of the image over one axis of the grid: line y lies at ``max(a y + b, 0)/d``."""

    lines: int  # of the grid
    size: int  # of the image
    a: int
    b: int
    d: int

    @classmethod
    def between(cls, lines: int, size: int, align_corners: bool) -> "Axis":
        """The axis on which ``size`` lines are interpolated from ``lines``."""
        if align_corners:
            # A single line is interpolated with itself, and so is one line of the image with the first of the grid.
            return cls(lines, size, max(lines - 1, 1), 0, max(size - (lines > 1), 1))
        return cls(lines, size, 2 * lines, lines - size, 2 * size)


class CoarseLogits(NamedTuple):
    """What a network gave, and the size it is meant for; losses take it in place of logits at that size.

    Attributes:
        logits: (B, C, h, w) float.
        size: (H, W) of the image.
        align_corners: how the one is brought to the other.
    """

    logits: Tensor
    size: Size
    align_corners: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, C, H, W) at the size of the image."""
        return (*self.logits.shape[:2], *self.size)

    @property
    def dtype(self) -> torch.dtype:
        """Of losses, and of logits at the size of the image: float32 or wider."""
        return torch.promote_types(self.logits.dtype, torch.float32)

    def numel(self) -> int:
        """B·C·H·W."""
        return math.prod(self.shape)

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns."""
        rows, columns = (
            Axis.between(lines, size, self.align_corners)
            for lines, size in zip(self.logits.shape[2:], self.size, strict=True)
        )
        return rows, columns

    def of(self, classes: Sequence[int]) -> "CoarseLogits":
        """Those of some classes: a loss that asks for few need not enlarge all."""
        chosen = slice(classes[0], classes[-1] + 1) if is_run(classes) else list(classes)  # cut out without waiting
        return self._replace(logits=self.logits[:, chosen])

    def full_size(self) -> Tensor:
        """(B, C, H, W) by two small matrix products, whose gradient is two more.

        To rounding what ``interpolate`` gives, whose gradient takes several times as long. Where the user allows TF32,
        a GPU rounds to that.
        """
        logits = self.logits.to(self.dtype)
        if logits.shape[2:] == self.size:
            return logits
        with torch.autocast(logits.device.type, enabled=False):
            rows, columns = (_weights(axis, logits.device, logits.dtype) for axis in self.axes)
            return rows @ (logits @ columns.T)


def enlarge_features(features: Tensor, size: Size, align_corners: bool) -> Tensor:
    """(B, C, h, w) → (B, C, H, W), channels last, as convolutions on a CPU want it; computed as by ``full_size``."""
    (height, width), (batch, channels, h, w) = size, features.shape
    rows, columns = CoarseLogits(features, size, align_corners).axes
    with torch.autocast(features.device.type, enabled=False):
        tall = _weights(rows, features.device, features.dtype) @ features.movedim(1, -1).reshape(batch, h, w * channels)
        wide = _weights(columns, features.device, features.dtype) @ tall.view(batch * height, w, channels)
    return wide.view(batch, height, width, channels).movedim(-1, 1)


def is_run(numbers: Sequence[int]) -> bool:
    """Whether these are one number after the other, such as the classes of a step."""
    return bool(numbers) and list(numbers) == list(range(numbers[0], numbers[-1] + 1))


Scores = Tensor | CoarseLogits
"""What the losses take: logits at the size of the image, or such as are meant for it."""


def full_size(scores: Scores) -> Tensor:
    """(B, C, H, W) logits."""
    return scores.full_size() if isinstance(scores, CoarseLogits) else scores


def interpolate(scores: CoarseLogits) -> Tensor:
    """(B, C, H, W) by PyTorch's own interpolation, in the type of the logits."""
    if scores.logits.shape[2:] == scores.size:
        return scores.logits
    return F.interpolate(scores.logits, size=scores.size, mode="bilinear", align_corners=scores.align_corners)


@lru_cache(maxsize=64)
def _weights(axis: Axis, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(size, lines): the share of every line of the grid in every line of the image."""
    with torch.inference_mode(False):
        place = (torch.arange(axis.size) * axis.a + axis.b).clamp_min(0)
        low = place // axis.d
        share = (place - low * axis.d).double() / axis.d
        low, high = low.clamp_max(axis.lines - 1), (low + 1).clamp_max(axis.lines - 1)
        weights = torch.zeros(axis.size, axis.lines, dtype=torch.float64)
        weights.scatter_add_(1, low[:, None], 1 - share[:, None])
        weights.scatter_add_(1, high[:, None], share[:, None])
        return weights.to(device, dtype)
