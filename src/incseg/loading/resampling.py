"""Crops cut and resized in batch on a device, to the bit as the CPU resizes them one by one.

PyTorch resizes uint8 on the CPU ("bilinear" with antialias, after Pillow) in whole numbers: first the columns, then the
rows; each pixel is a weighted mean with integer weights, rounded to a byte. Whole numbers have one sum in any order, so
any device gives the same bytes. The weights depend only on the length that is resized; they are computed once for every
length, and a batch looks them up. The host waits for nothing, and every shape is known beforehand: a batch can be
captured in a CUDA graph.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incseg.batch import Batch
from incseg.loading.decoded import DecodedImages

Number = TypeVar("Number", int, Tensor)
MOST_BITS = 22  # of a weight; as in PyTorch, as many as let the greatest weight fit into 16 bits


class Weights(NamedTuple):
    """How each of S new pixels is a mean of old ones: those from ``first`` on, with these weights / 2^bits."""

    first: NDArray[np.int64]
    """(S,)"""
    weights: NDArray[np.int64]
    """(S, K)"""
    bits: int


def resizing_weights(length: int, size: int) -> Weights:
    """What PyTorch averages when it resizes ``length`` pixels to ``size``: a triangle, wider where it reduces."""
    scale = length / size
    support = max(scale, 1.0)
    centre = scale * (np.arange(size) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    number = np.minimum((centre + support + 0.5).astype(np.int64), length) - first
    old = first[:, None] + np.arange(number.max())
    distance = np.abs((old - centre[:, None] + 0.5) * (1 / scale if scale >= 1 else 1.0))
    triangle = np.where((distance < 1) & (old < (first + number)[:, None]), 1 - distance, 0.0)
    shares = triangle / triangle.cumsum(axis=1)[:, -1:]  # summed one after another, as PyTorch does
    greatest = float(shares.max())
    bits = next((b for b in range(MOST_BITS) if int(0.5 + greatest * 2 ** (b + 1)) >= 2**15), MOST_BITS)
    return Weights(first, (0.5 + shares * 2**bits).astype(np.int64), bits)


class ResizingTable:
    """The weights of every length up to the longest, on a device."""

    def __init__(self, longest: int, size: int, device: torch.device):
        found = [resizing_weights(length, size) for length in range(1, longest + 1)]
        self.taps = max(weights.weights.shape[1] for weights in found)
        first = np.zeros((longest + 1, size), np.int32)
        weights = np.zeros((longest + 1, size, self.taps), np.int16)
        for length, known in enumerate(found, start=1):
            first[length], weights[length, :, : known.weights.shape[1]] = known.first, known.weights
        self.first, self.weights = (torch.from_numpy(values).to(device) for values in (first, weights))
        self.bits = torch.tensor([1, *(known.bits for known in found)], dtype=torch.int32, device=device)
        self.half: Tensor = 1 << (self.bits - 1)

    def mean(self, pixels_at: Callable[[Tensor], Tensor], lengths: Tensor, places: Tensor, axis: int) -> Tensor:
        """Resize one axis of a batch of images.

        Args:
            pixels_at: old positions (B, S) along the axis → the words (B, …, S, …) there.
            lengths: (B,) of the axis in each image.
            places: (B, S) or (S,) the new positions that are wanted.
            axis: that of S in these words, 1 or 2.
        """
        lengths, last = lengths[:, None], lengths[:, None] - 1
        first, weights = self.first[lengths, places], self.weights[lengths, places].int()
        bits, half = (values[lengths][..., None, None] for values in (self.bits, self.half))
        total: Tensor | None = None
        for tap in range(self.taps):
            positions = torch.minimum(first + tap, last)  # beyond the last one the weight is 0
            part = _bytes(pixels_at(positions)) * weights[:, :, tap, None].unsqueeze(3 - axis)
            total = part if total is None else total.add_(part)
        assert total is not None
        # At most 255: rounding the weights adds less than half a step to a mean.
        return _words(torch.bitwise_right_shift(total.add_(half), bits).to(torch.uint8))


def _bytes(words: Tensor) -> Tensor:
    """(…) int32 → (…, 4) uint8."""
    return words[..., None].view(torch.uint8)


def _words(pixels: Tensor) -> Tensor:
    """(…, 4) uint8 → (…) int32."""
    return pixels.view(torch.int32)[..., 0]


class Cut(NamedTuple, Generic[Number]):
    """A crop as a device needs it, in whole numbers; of a batch, a tensor (B,) each."""

    start: Number
    """The crop's first pixel in the buffer."""
    stride: Number
    """Pixels from one row to the next: the width of the whole image."""
    height: Number
    width: Number
    flipped: Number
    table: Number
    """Which of the tables says what the ids in the mask mean."""
    replayed: Number
    """As in :class:`Batch`."""


class BatchCutter:
    """Cuts crops out of decoded images on their device, resizes, flips and labels them."""

    def __init__(self, decoded: DecodedImages, size: int):
        self.size, device = size, decoded.pixels.device
        self.words = decoded.pixels.flatten().view(torch.int32)
        height, width = decoded.layout.largest
        self.table = ResizingTable(max(height, width), size, device)
        self.rows, self.places = torch.arange(height, device=device), torch.arange(size, device=device)

    def __call__(self, cuts: Tensor, tables: Tensor) -> Batch:
        """(B, 7) int64, a :class:`Cut` each, and (T, 256) int64 id → channel, both on the device."""
        cut: Cut[Tensor] = Cut(*cuts.unbind(dim=1))
        columns = torch.where(cut.flipped[:, None] == 1, self.size - 1 - self.places, self.places)
        return Batch(self._images(cut, columns), self._labels(cut, columns, tables), cut.replayed)

    def _images(self, cut: Cut[Tensor], columns: Tensor) -> Tensor:
        """(B, 3, S, S) uint8."""
        rows = torch.minimum(self.rows, cut.height[:, None] - 1)  # as many for every image, so that shapes are fixed
        begins = self._begins(cut, rows)
        narrowed = self.table.mean(lambda at: self.words[begins + at[:, None, :]], cut.width, columns, axis=2)
        which = torch.arange(len(rows), device=rows.device)[:, None]
        resized = self.table.mean(lambda at: narrowed[which, at], cut.height, self.places, axis=1)
        return _bytes(resized)[..., :3].permute(0, 3, 1, 2).contiguous()

    def _labels(self, cut: Cut[Tensor], columns: Tensor, tables: Tensor) -> Tensor:
        """(B, S, S) int64; each pixel has the id at its centre, as in :func:`incseg.sizes.resize_nearest`."""
        rows, columns = (
            (2 * places + 1) * length[:, None] // (2 * self.size)
            for places, length in ((self.places, cut.height), (columns, cut.width))
        )
        ids = _bytes(self.words[self._begins(cut, rows) + columns[:, None, :]])[..., 3].long()
        return tables[cut.table[:, None, None], ids]

    @staticmethod
    def _begins(cut: Cut[Tensor], rows: Tensor) -> Tensor:
        """(B, R) rows of the crops → (B, R, 1) where they begin in the buffer."""
        return (cut.start[:, None] + rows * cut.stride[:, None])[:, :, None]
