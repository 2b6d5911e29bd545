"""The closed-form head: ridge regression on random features of a frozen network, from sums that add and subtract.

Per cell of a coarse grid, with u the embedding and v, v', … the encoder's last stages, perhaps also those of the
encoder before it was trained, and g the mean of the last one over a wide window around the cell, each scaled to length
16::

    φ = relu(R [u; v; …; g; 1])                   R: W × D, N(0, 1)/16, from a seed, never trained
    A = Σ a φ φᵀ,  B = Σ φ (w ⊙ y)ᵀ               y: shares of the classes in the cell, a = w · y
    w_c = (n_ref / n_c)^β                         n_c: cells of class c when it was learnt
    H = (A + γ I)⁻¹ B                             in float64

A and B are all that is kept of the data: sums over millions of cells, no image and no pixel. Statistics of two places
add up to those of both; what a place added can be subtracted again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn import functional as F

from incseg.batch import ScoreKind
from incseg.errors import TrainingError
from incseg.models.heads import Head
from incseg.protocol import BACKGROUND, IGNORE

METHOD = "analytic"  # that adds classes to statistics
LENGTH = 16.0  # of every feature vector before the projection
BLOCK = 256  # rows of A that are computed at once; only blocks on and above the diagonal are
LARGEST_FILE = 70_000_000  # bytes of statistics, with the default width


class FeatureLayout(BaseModel):
    """Which features a closed-form head sees; enough to build the same random features again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channels: tuple[int, ...]
    """Of the embedding, then of the last stages, the last one first, then of those of the original encoder, then of the
    surroundings."""
    strides: tuple[int, ...]
    """Pixels of the image per cell of each of these maps."""
    width: int
    """W, the number of random features."""
    stride: int = 16
    """Pixels of the image per cell of the head's own grid."""
    original: int = 0
    """How many of the last stages are those of the encoder as it was before training."""
    context: int = 0
    """Cells along a side of the window over which the surroundings of a cell are averaged; 0: it does not see them."""
    seed: int = 0
    """The projection follows from it."""

    @property
    def stages(self) -> int:
        """How many of the encoder's stages it sees."""
        return len(self.channels) - 1 - self.original - bool(self.context)

    @property
    def surroundings(self) -> int:
        """Which map is averaged over the window: the last stage of the original encoder, else of the own, if seen."""
        return 1 + self.stages if self.original else min(self.stages, 1)

    def with_context(self, side: int) -> "FeatureLayout":
        """The same, and the surroundings of every cell: a window so many cells wide and high, an odd number."""
        channels, strides = (*self.channels, self.channels[self.surroundings]), (*self.strides, self.stride)
        return self.model_copy(update={"channels": channels, "strides": strides, "context": side})


class RandomFeatures(nn.Module):
    """``φ = relu(R [u; v; …; 1])`` on the grid of the layout."""

    projection: Tensor

    def __init__(self, layout: FeatureLayout):
        super().__init__()
        self.layout = layout
        generator = torch.Generator().manual_seed(layout.seed)
        projection = torch.randn(layout.width, sum(layout.channels) + 1, generator=generator) / LENGTH
        self.register_buffer("projection", projection)

    def forward(self, embedding: Tensor, stages: Sequence[Tensor]) -> Tensor:
        """The embedding (B, D, h, w) and the stages → (B, h', w', W).

        Stages are finest first; those of the original encoder, where it is kept, come before those of the encoder.
        """
        return self.project(self.cells(embedding, stages))

    def cells(self, embedding: Tensor, stages: Sequence[Tensor]) -> Tensor:
        """(B, h', w', D_u + D_v + …) ``[u; v; …]``, still small: φ is many times as wide."""
        half = len(stages) // 2
        maps = [embedding, *(stages[-1 - index] for index in range(self.layout.stages))]
        maps += [stages[half - 1 - index] for index in range(self.layout.original)]
        on_the_grid = [
            _of_unit_length(on_grid(each.to(self.projection), stride, self.layout.stride))
            for each, stride in zip(maps, self.layout.strides, strict=False)
        ]
        if self.layout.context:
            seen = on_the_grid[self.layout.surroundings]
            on_the_grid.append(_of_unit_length(window_mean(seen, self.layout.context)))
        return LENGTH * torch.cat(on_the_grid, dim=1).movedim(1, -1)

    def project(self, cells: Tensor) -> Tensor:
        """(…, D) → (…, W) φ."""
        bias = self.projection[:, -1].contiguous()  # as a column it would cost a sixth of the product
        return F.linear(cells, self.projection[:, :-1], bias).relu_()


class ClosedFormHead(Head):
    """``φ H``: scores near 1 for the class of a cell and near 0 for the others."""

    kind: ClassVar[ScoreKind] = "closed-form"
    weight: Tensor

    def __init__(self, layout: FeatureLayout, head_sizes: Sequence[int], weight: Tensor | None = None):
        super().__init__()
        self.features = RandomFeatures(layout)
        self._head_sizes = list(head_sizes)
        empty = torch.zeros(layout.width, sum(head_sizes))
        self.register_buffer("weight", empty if weight is None else weight.float())

    @property
    def layout(self) -> FeatureLayout:
        """Which features it sees."""
        return self.features.layout

    @property
    def in_words(self) -> str:
        """How it was made, and what it sees."""
        cell = f"{self.layout.stride}×{self.layout.stride}"
        return f"solved in closed form, on {self.layout.width} random features of every {cell} pixels"

    @property
    def head_sizes(self) -> list[int]:
        """How many classes each step added, background among the first."""
        return self._head_sizes

    def forward(self, embedding: Tensor, stages: Sequence[Tensor]) -> Tensor:
        """(B, C, h, w) scores on the grid of the layout."""
        random: Tensor = self.features(embedding, stages)
        return (random @ self.weight).movedim(-1, 1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Scores estimate probabilities already; what lies outside [0, 1] is clipped, and the rest made to sum to 1."""
        clipped = scores.clamp(1e-6, 1)
        return clipped / clipped.sum(dim=1, keepdim=True)


def on_grid(features: Tensor, stride: int, wanted: int) -> Tensor:
    """(B, D, h, w) with one cell per ``stride`` pixels → one per ``wanted``: averaged, or interpolated."""
    if stride < wanted:
        return F.avg_pool2d(features, wanted // stride)
    if stride > wanted:
        return F.interpolate(features, scale_factor=stride / wanted, mode="bilinear", align_corners=False)
    return features


def window_mean(features: Tensor, side: int) -> Tensor:
    """(B, D, h, w) → the mean over the cells of a window around each, ``side`` of them wide and high, an odd number.

    At the border only the cells inside the map count. The window is a rectangle, so that rows and columns are averaged
    one after the other.
    """
    rows = F.avg_pool2d(features, (side, 1), stride=1, padding=(side // 2, 0), count_include_pad=False)
    return F.avg_pool2d(rows, (1, side), stride=1, padding=(0, side // 2), count_include_pad=False)


def _of_unit_length(features: Tensor) -> Tensor:
    return F.normalize(features, dim=1)


def class_shares(labels: Tensor, num_classes: int, stride: int, *, soft: bool) -> Tensor:
    """What each cell of the grid shows.

    Args:
        labels: (B, H, W) integer channels, H and W multiples of the stride; 255 is ignored.
        num_classes: C.
        stride: pixels per cell, along each side.
        soft: the share of each class in the cell; else all of the label at its centre.

    Returns:
        (B, h, w, C) shares; they sum to the labelled part of the cell, 0 where all of it is ignored.
    """
    cells = labels[:, stride // 2 :: stride, stride // 2 :: stride, None]
    if soft:
        cells = labels.unfold(1, stride, stride).unfold(2, stride, stride).flatten(-2)
    known = cells.where(cells != IGNORE, num_classes)
    # Counted within cells: a channel per class at the size of the image would be the largest tensor of all.
    counts = torch.zeros(*known.shape[:-1], num_classes + 1, device=labels.device)
    counts.scatter_add_(-1, known, torch.ones((), device=labels.device).expand(known.shape))
    return counts[..., :num_classes] / known.shape[-1]


def complete_background(shares: Tensor, scores: Tensor, certainty: float) -> Tensor:
    """Give the background of a step to whatever the head of the step before says it is.

    A class that is not labelled in this step lies in its background. The weight of such a pseudo-label is
    ``margin^certainty``, the margin by which the best score exceeds the second, clipped to [0, 1]: with 0 every
    pseudo-label counts fully.

    Args:
        shares: (B, h, w, C) of :func:`class_shares` for this step's labels.
        scores: (B, h, w, K) of the head before, K ≤ C, background first.
        certainty: how much an unsure opinion counts less.

    Returns:
        (B, h, w, C); new classes keep their shares.
    """
    best = scores.topk(min(2, scores.shape[-1]), dim=-1)
    margin = (best.values[..., 0] - best.values[..., -1]).clamp(0, 1)
    weight = shares[..., BACKGROUND] * (margin**certainty if certainty else 1.0)
    completed = shares.clone()
    completed[..., BACKGROUND] = 0
    return completed.scatter_add(-1, best.indices[..., :1], weight[..., None])


def default_width(num_classes: int) -> int:
    """The largest width of a few thousand whose statistics stay below 70 MB."""
    return next(
        width for width in range(4096, 0, -128) if 8 * (width * (width + 1) // 2 + width * num_classes) < LARGEST_FILE
    )


@dataclass(frozen=True, repr=False)
class Statistics:
    """Everything a closed-form head is made of.

    Attributes:
        layout: the features they were gathered with.
        gram: (W, W) float64, A; only the blocks on and above the diagonal are filled.
        cross: (W, C) float64, B.
        cells: (C,) float64, the cells of each class when it was learnt, from which its weight follows.
        reference: () float64, n_ref: fixed when the first classes are learnt.
    """

    layout: FeatureLayout
    gram: Tensor
    cross: Tensor
    cells: Tensor
    reference: Tensor

    @classmethod
    def empty(cls, layout: FeatureLayout, device: torch.device | str = "cpu") -> "Statistics":
        """No cell seen yet, no class known."""
        zeros = torch.zeros(layout.width, layout.width, dtype=torch.float64, device=device)
        return cls(layout, zeros, zeros[:, :0].clone(), zeros[0, :0].clone(), zeros[0, 0].clone())

    def __repr__(self) -> str:
        cells = f"{float(self.cells.sum()):,.0f} cells of {self.layout.stride}×{self.layout.stride} pixels"
        return f"Statistics({self.num_classes} channels, {self.layout.width} features, {cells})"

    @property
    def num_classes(self) -> int:
        """C, background included."""
        return self.cross.shape[1]

    def with_classes(self, cells: Tensor) -> "Statistics":
        """Room for new classes, which have that many cells each; the first time also the reference is set."""
        cells = cells.to(self.cells)
        reference = self.reference if self.num_classes else cells.mean()
        return replace(
            self,
            cross=F.pad(self.cross, (0, len(cells))),
            cells=torch.cat([self.cells, cells]),
            reference=reference,
        )

    def unseen(self, channels: Iterable[int]) -> list[int]:
        """Those of these channels that no cell showed: they get no score."""
        return [channel for channel in channels if not self.cross[:, channel].any()]

    def not_learnt(self, names: Sequence[str]) -> str:
        """What is said of such classes: they are thin."""
        return f"not learnt, because no cell of {self.layout.stride} pixels has its centre on it: {', '.join(names)}"

    def nothing(self) -> "Statistics":
        """The same classes and weights with empty sums, to gather into."""
        return replace(self, gram=torch.zeros_like(self.gram), cross=torch.zeros_like(self.cross))

    def class_weights(self, balance: float) -> Tensor:
        """(C,) ``(n_ref / n_c)^β``."""
        return (self.reference / self.cells.clamp_min(1)) ** balance

    def add(self, features: Tensor, shares: Tensor, weights: Tensor) -> None:
        """Take cells into the sums, in place: these are by far the largest tensors here.

        Products are in the type of the features and are added up in float64: a call should have some thousand cells.

        Args:
            features: (P, W) φ.
            shares: (P, C) y.
            weights: (C,) w.
        """
        targets = shares.to(features.dtype) * weights.to(features)
        amount = targets.sum(dim=1, keepdim=True)
        self.cross.add_(features.T @ targets)
        for start in range(0, features.shape[1], BLOCK):
            rows = slice(start, start + BLOCK)
            self.gram[rows, start:].add_((features[:, rows] * amount).T @ features[:, start:])

    def solve(self, ridge: float) -> Tensor:
        """(W, C) float64 ``H = (A + γ I)⁻¹ B``."""
        lower = self.gram.T.clone()  # what lies above the diagonal is not read
        lower.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(lower)
        if failed.item():
            raise TrainingError(
                f"the closed-form head cannot be solved with a ridge of {ridge:g}: the statistics are not positive "
                "definite, as when more was subtracted than had been added, or a feature is not finite; use a larger "
                "ridge, or gather them again."
            )
        return torch.cholesky_solve(self.cross, factor)

    def plus(self, other: "Statistics", sign: int = 1) -> "Statistics":
        """Sums of two places added (or the second subtracted), for the same classes in the same order."""
        return replace(self, gram=self.gram + sign * other.gram, cross=self.cross + sign * other.cross)

    def state(self) -> dict[str, Tensor]:
        """As tensors for a file: the symmetric A as its upper triangle, the layout as JSON."""
        rows, columns = torch.triu_indices(*self.gram.shape, device=self.gram.device)
        return {
            "layout": torch.tensor(list(self.layout.model_dump_json().encode()), dtype=torch.uint8),
            "gram": self.gram[rows, columns],
            "cross": self.cross,
            "cells": self.cells,
            "reference": self.reference,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Statistics":
        """The way back from :meth:`state`."""
        layout = FeatureLayout(**json.loads(bytes(state["layout"].tolist())))
        cross = state["cross"]
        gram = torch.zeros(layout.width, layout.width, dtype=cross.dtype, device=cross.device)
        rows, columns = torch.triu_indices(*gram.shape, device=gram.device)
        gram[rows, columns] = state["gram"]
        return cls(layout, gram, cross, state["cells"], state["reference"])
