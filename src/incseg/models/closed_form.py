"""The closed-form head: ridge regression on random features of a frozen network, from sums that add and subtract.

Per cell of a coarse grid, with u the embedding and v, v', … the encoder's last stages, each scaled to length 16::

    φ = relu(R [u; v; …; 1])                      R: W × D, N(0, 1)/16, from a seed, never trained
    A = Σ a φ φᵀ,  B = Σ φ (w ⊙ y)ᵀ               y: shares of the classes in the cell, a = w · y
    w_c = (n_ref / n_c)^β                         n_c: cells of class c when it was learnt
    H = (A + γ I)⁻¹ B                             in float64

A and B are all that is kept of the data: sums over millions of cells, no image and no pixel. Statistics of two places
add up to those of both; what a place added can be subtracted again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from incseg.errors import TrainingError
from incseg.protocol import BACKGROUND, IGNORE

LENGTH = 16.0  # of every feature vector before the projection
BLOCK = 1024  # columns of A that are computed at once; only blocks on and above the diagonal are


class RandomFeatures(nn.Module):
    """``φ = relu(R [u; v; …; 1])`` on a grid of one cell per ``stride`` pixels.

    Args:
        channels: of each feature map, in the order in which they will come.
        width: W, the number of random features.
        seed: R follows from it.
        stride: pixels of the image per cell, along each side.
    """

    projection: Tensor

    def __init__(self, channels: Sequence[int], width: int, seed: int, stride: int = 16):
        super().__init__()
        self.stride = stride
        generator = torch.Generator().manual_seed(seed)
        projection = torch.randn(width, sum(channels) + 1, generator=generator) / LENGTH
        self.register_buffer("projection", projection)

    @property
    def width(self) -> int:
        """W."""
        return self.projection.shape[0]

    def forward(self, maps: Sequence[Tensor], image_size: tuple[int, int]) -> Tensor:
        """Feature maps (B, D_i, h_i, w_i) of images of that size → (B, h, w, W)."""
        size = grid_size(image_size, self.stride)
        scaled = [LENGTH * F.normalize(on_grid(each.float(), size), dim=1) for each in maps]
        cells = torch.cat(scaled, dim=1).movedim(1, -1)
        return F.linear(cells, self.projection[:, :-1], self.projection[:, -1]).relu_()


def grid_size(image_size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Cells along each side of an image."""
    height, width = image_size
    return -(-height // stride), -(-width // stride)


def on_grid(features: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, D, h, w) averaged down to the grid, or interpolated up to it."""
    if features.shape[-2:] == size:
        return features
    if features.shape[-2] >= size[0] and features.shape[-1] >= size[1]:
        return F.adaptive_avg_pool2d(features, size)
    return F.interpolate(features, size=size, mode="bilinear", align_corners=False)


def class_shares(labels: Tensor, num_classes: int, stride: int, *, soft: bool) -> Tensor:
    """What each cell of the grid shows.

    Args:
        labels: (B, H, W) integer channels; 255 is ignored.
        num_classes: C.
        stride: pixels per cell, along each side.
        soft: the share of each class in the cell; else all of the label at its centre.

    Returns:
        (B, h, w, C) shares; they sum to the labelled part of the cell, 0 where all of it is ignored.
    """
    size = grid_size((labels.shape[-2], labels.shape[-1]), stride)
    if not soft:
        labels = F.interpolate(labels[:, None].float(), size=size, mode="nearest-exact")[:, 0].long()
        return F.one_hot(labels.where(labels != IGNORE, num_classes), num_classes + 1)[..., :num_classes].float()
    known = labels.where(labels != IGNORE, num_classes)
    members = F.one_hot(known, num_classes + 1)[..., :num_classes].movedim(-1, 1).float()
    return F.adaptive_avg_pool2d(members, size).movedim(1, -1)


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


@dataclass(frozen=True)
class Statistics:
    """Everything a closed-form head is made of.

    Attributes:
        gram: (W, W) float64, A; only the blocks on and above the diagonal are filled.
        cross: (W, C) float64, B.
        cells: (C,) float64, the cells of each class when it was learnt, from which its weight follows.
        reference: () float64, n_ref: fixed when the first classes are learnt.
    """

    gram: Tensor
    cross: Tensor
    cells: Tensor
    reference: Tensor

    @classmethod
    def empty(cls, width: int, device: torch.device | str = "cpu") -> "Statistics":
        """No cell seen yet, no class known."""
        zeros = torch.zeros(width, width, dtype=torch.float64, device=device)
        return cls(zeros, zeros[:, :0].clone(), zeros[0, :0].clone(), torch.zeros((), dtype=torch.float64))

    @property
    def num_classes(self) -> int:
        """C, background included."""
        return self.cross.shape[1]

    def with_classes(self, cells: Tensor) -> "Statistics":
        """Room for new classes, which have that many cells each; the first time also the reference is set."""
        cells = cells.to(self.cells)
        known = torch.cat([self.cells, cells])
        cross = F.pad(self.cross, (0, len(cells)))
        reference = self.reference if self.num_classes else cells.mean().cpu()
        return replace(self, cross=cross, cells=known, reference=reference)

    def class_weights(self, balance: float) -> Tensor:
        """(C,) ``(n_ref / n_c)^β``; a class without a cell has no weight to speak of."""
        return (self.reference.to(self.cells) / self.cells.clamp_min(1)) ** balance

    def add(self, features: Tensor, shares: Tensor, weights: Tensor) -> None:
        """Take cells into the sums, in place: these are by far the largest tensors here.

        Args:
            features: (P, W) φ.
            shares: (P, C) y.
            weights: (C,) w.
        """
        targets = shares.to(features.dtype) * weights.to(features)
        amount = targets.sum(dim=1, keepdim=True)
        kept = amount[:, 0] > 0
        features, targets, amount = features[kept], targets[kept], amount[kept]
        self.cross.add_((features.T @ targets).double())
        scaled = features * amount.sqrt()
        for start in range(0, scaled.shape[1], BLOCK):
            block = scaled[:, start : start + BLOCK].T @ scaled[:, start:]
            self.gram[start : start + BLOCK, start:].add_(block.double())

    def solve(self, ridge: float) -> Tensor:
        """(W, C) float64 ``H = (A + γ I)⁻¹ B``."""
        upper = self.gram.triu()
        full = upper + upper.triu(1).T
        full.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(full)
        if failed.item():
            raise TrainingError(
                f"the closed-form head cannot be solved with a ridge of {ridge:g}: the statistics are not positive "
                "definite, as when more was subtracted than had been added; use a larger ridge."
            )
        return torch.cholesky_solve(self.cross, factor)

    def plus(self, other: "Statistics", sign: int = 1) -> "Statistics":
        """Sums of two places added (or the second subtracted), for the same classes in the same order."""
        return replace(self, gram=self.gram + sign * other.gram, cross=self.cross + sign * other.cross)

    def state(self) -> dict[str, Tensor]:
        """As tensors for a file: the symmetric A as its upper triangle."""
        rows, columns = torch.triu_indices(*self.gram.shape, device=self.gram.device)
        return {"gram": self.gram[rows, columns], "cross": self.cross, "cells": self.cells, "reference": self.reference}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Statistics":
        """The way back from :meth:`state`."""
        cross = state["cross"]
        gram = torch.zeros(len(cross), len(cross), dtype=cross.dtype, device=cross.device)
        rows, columns = torch.triu_indices(*gram.shape, device=gram.device)
        gram[rows, columns] = state["gram"]
        return cls(gram, cross, state["cells"], state["reference"])
