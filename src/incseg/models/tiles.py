"""Prediction on images of any size: large ones as overlapping tiles whose logits are blended, in little memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from incseg.models.segmenter import Segmenter
from incseg.sizes import OVERLAP, STRIDE, TILE, reduced_size, resize_images, resize_nearest

ReadScores = Callable[[Tensor], tuple[Tensor, ...]]  # (B, C, H, W) scores → what is kept of them, (B, …, H, W) each
MARGIN = 64  # pixels along a tile's inner edges with weight 0: the network lacks the context beyond the edge there


@dataclass(frozen=True)
class Span:
    """A tile along one axis. ``weight`` rises and falls so that the weights of all tiles add up to 1 at every pixel."""

    start: int
    stop: int
    settled: int
    """Up to here the sum is complete once this tile is added; the rest overlaps the next tile."""
    weight: Tensor


def predict_ids(segmenter: Segmenter, images: Tensor, tile: int = TILE, overlap: int = OVERLAP) -> Tensor:
    """(B, 3, H, W) uint8 of any size, on the CPU → (B, H, W) uint8 channels, where the network is."""
    return torch.stack([ids for (ids,) in predict_maps(segmenter, images, lambda s: (class_ids(s),), tile, overlap)])


def class_ids(scores: Tensor) -> Tensor:
    """(B, C, H, W) → (B, H, W) uint8, the channel of the highest score."""
    return scores.argmax(dim=1).to(torch.uint8)


def predict_maps(
    segmenter: Segmenter, images: Tensor, read: ReadScores, tile: int = TILE, overlap: int = OVERLAP
) -> Iterator[tuple[Tensor, ...]]:
    """(B, 3, H, W) uint8 of any size, on the CPU → for each image what ``read`` keeps of its scores, where it puts it.

    Images beyond the model's longest side are reduced to it, and what is kept is enlarged again. Images that fit into a
    tile are predicted whole, as a batch; larger ones tile by tile.
    """
    size = (images.shape[-2], images.shape[-1])
    images = resize_images(images, reduced_size(size, segmenter.architecture.longest_side))
    kept: Iterable[tuple[Tensor, ...]]
    if max(images.shape[-2:]) <= tile:
        kept = zip(*read(segmenter.segment(images.to(segmenter.mean.device))), strict=True)
    else:
        kept = (_by_tiles(segmenter, image, read, tile, overlap) for image in images)
    for maps in kept:
        yield tuple(resize_nearest(each, size) for each in maps)


def _by_tiles(segmenter: Segmenter, image: Tensor, read: ReadScores, tile: int, overlap: int) -> tuple[Tensor, ...]:
    """Go through the tiles row by row, and keep of a row's logits only those that the next row overlaps.

    Tiles start at multiples of the network's stride, so that every pixel has the same place on the network's grid as in
    the whole image.
    """
    height, width = image.shape[-2:]
    missing = ((0, 0), (0, -height % STRIDE), (0, -width % STRIDE))
    # As segment() pads, but on bytes: a float copy of the whole image would need four times its memory.
    padded = torch.from_numpy(np.pad(image.numpy(), missing, mode="edge"))
    columns = spans(padded.shape[-1], tile, overlap)
    whole: tuple[Tensor, ...] = ()
    above: Tensor | None = None
    for row in spans(padded.shape[-2], tile, overlap):
        strips = []
        for column, logits in _row(segmenter, padded[:, row.start : row.stop], row, columns):
            if above is not None:
                logits[:, : above.shape[1]] += above[..., column.start : column.settled]
            done = row.settled - row.start
            kept = read(logits[None, :, :done])
            whole = whole or tuple(part.new_empty((*part.shape[1:-2], height, width)) for part in kept)
            for canvas, part in zip(whole, kept, strict=True):
                place = canvas[..., row.start : row.settled, column.start : column.settled]
                place.copy_(part[0, ..., : place.shape[-2], : place.shape[-1]])
            strips.append(logits[:, done:].clone())
        above = torch.cat(strips, dim=-1)
    return whole


def _row(segmenter: Segmenter, band: Tensor, row: Span, columns: list[Span]) -> Iterator[tuple[Span, Tensor]]:
    """The weighted logits of one row of tiles, each with the overlap from the left added, cut where the next begins."""
    left: Tensor | None = None
    device = segmenter.mean.device
    for column in columns:
        logits = segmenter.segment(band[None, :, :, column.start : column.stop].to(device))[0].float()
        logits = logits * row.weight.to(device)[:, None] * column.weight.to(device)
        if left is not None:
            logits[..., : left.shape[-1]] += left
        done = column.settled - column.start
        left = logits[..., done:].clone()
        yield column, logits[..., :done]


def spans(length: int, tile: int, overlap: int) -> list[Span]:
    """Cut a length into tiles that start at multiples of 32 and overlap by at least ``overlap``.

    In an overlap the weight moves linearly from one tile to the next, except along the margins, where only the tile
    with more context counts.
    """
    if length <= tile:
        return [Span(0, length, length, torch.ones(length))]
    assert tile % STRIDE == overlap % STRIDE == length % STRIDE == 0
    assert overlap < tile
    number = -(-(length - overlap) // (tile - overlap))
    step = -(-(length - tile) // ((number - 1) * STRIDE)) * STRIDE
    starts = [min(index * step, length - tile) for index in range(number)]
    weights = [torch.ones(tile) for _ in starts]
    for index, (one, two) in enumerate(pairwise(starts)):
        shared = one + tile - two
        weights[index][-shared:] = 1 - _ramp(shared)
        weights[index + 1][:shared] = _ramp(shared)
    settled = [*starts[1:], length]
    return [Span(start, start + tile, end, w) for start, end, w in zip(starts, settled, weights, strict=True)]


def _ramp(length: int) -> Tensor:
    """From 0 to 1, flat along both margins (narrower ones where the overlap is small)."""
    margin = min(MARGIN, length // 4)
    return ((torch.arange(length) + 0.5 - margin) / (length - 2 * margin)).clamp(0, 1)
