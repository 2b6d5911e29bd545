"""How rows are laid out for ``triton_kernels``: sizes with padding, and tiles that fit a device."""

from functools import cache, lru_cache
from typing import NamedTuple

import torch

from incseg.losses.contrastive.backend import ContrastSets

ALIGN = 128  # rows of a segment are padded to this, so that no tile holds rows of two segments
KEPT = 256  # combinations of shapes and settings of which sizes and launches are kept
CLASS_BLOCK = 32
MOST_CHANNELS, LONG_BLOCK = 256, 128  # rows read at once, or in blocks of so many channels
LARGE_SHARED_MEMORY = 220 * 1024  # bytes per block: Hopper and newer


class Tiling(NamedTuple):
    """Shape of one program's work."""

    rows: int
    columns: int
    warps: int
    stages: int

    def launch(self) -> dict[str, int]:
        """Keyword arguments of a kernel launch."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "num_warps": self.warps, "num_stages": self.stages}


class Tilings(NamedTuple):
    """One shape per kernel."""

    log_sums: Tiling
    positives: Tiling
    gradient: Tiling


class Geometry(NamedTuple):
    """What decides, together with the settings, how the kernels are launched."""

    n: int  # anchors
    m: int  # contrast rows
    dim: int
    classes: int  # 0 without probabilities
    label_strides: tuple[int, ...]  # of anchors and contrast
    strides: tuple[int, ...]  # of the anchors, the contrast rows and the probabilities of both: two each
    precise: bool  # products keep float32's accuracy
    device: torch.device


class Sizes(NamedTuple):
    """Sizes as the kernels see them, and tile shapes.

    Rows are arranged as the kernels stream them: n anchors, padding, m contrast rows, padding; ``total`` in all.
    """

    padded_n: int  # where the contrast rows start
    total: int
    dim: int
    classes: int
    tilings: Tilings
    splits: int  # shares of the columns in ``log_sums``
    gradient_splits: int

    @property
    def order_at(self) -> int:
        """Where the order that sorts the rows starts in the int32 buffer."""
        return self.total + 4 * self.padded_n + 2


# By (large shared memory, precise), for rows of at most 256 channels: the fastest of those measured on an H200.
TILINGS = {
    (True, False): Tilings(Tiling(128, 128, 8, 2), Tiling(64, 128, 4, 1), Tiling(128, 64, 8, 2)),
    (True, True): Tilings(Tiling(128, 64, 8, 1), Tiling(64, 32, 4, 1), Tiling(128, 32, 8, 1)),
    (False, False): Tilings(Tiling(64, 32, 4, 2), Tiling(32, 32, 4, 1), Tiling(32, 32, 4, 1)),
    (False, True): Tilings(Tiling(32, 32, 4, 1), Tiling(32, 32, 4, 1), Tiling(32, 32, 4, 1)),
}
# Longer rows are read in blocks of channels, on both sides of the product.
LONG_TILINGS = {
    (True, False): Tilings(Tiling(128, 128, 8, 2), Tiling(64, 64, 4, 2), Tiling(128, 64, 8, 2)),
    (True, True): Tilings(Tiling(64, 64, 4, 2), Tiling(64, 32, 4, 2), Tiling(64, 64, 4, 2)),
    (False, False): Tilings(Tiling(64, 32, 4, 2), Tiling(32, 32, 4, 1), Tiling(32, 32, 4, 1)),
    (False, True): Tilings(Tiling(32, 32, 4, 1), Tiling(32, 32, 4, 1), Tiling(32, 32, 4, 1)),
}


def geometry_of(sets: ContrastSets, precise: bool) -> Geometry:
    """Shapes, strides and device of the sets, and how accurate their products are to be."""
    anchors, anchor_labels, contrast, contrast_labels, anchor_probs, contrast_probs = sets
    strides = anchors.stride() + contrast.stride()
    if anchor_probs is None or contrast_probs is None:
        classes, strides = 0, strides + strides
    else:
        classes, strides = anchor_probs.shape[1], strides + anchor_probs.stride() + contrast_probs.stride()
    (n, dim), m = anchors.shape, contrast.shape[0]
    label_strides = anchor_labels.stride() + contrast_labels.stride()
    return Geometry(n, m, dim, classes, label_strides, strides, precise, anchors.device)


@lru_cache(maxsize=KEPT)
def sizes_of(geometry: Geometry) -> Sizes:
    """Padded sizes, and tiles that fit them and the device."""
    padded_n, total = _aligned(geometry.n), _aligned(geometry.n) + _aligned(geometry.m)
    dim, classes = padded(geometry.dim), -(-geometry.classes // CLASS_BLOCK) * CLASS_BLOCK
    tiles = tilings(dim, geometry.precise, geometry.device)
    splits = splits_for(padded_n // tiles.log_sums.rows, geometry.device)
    gradient_programs = padded_n // tiles.gradient.rows * (dim // channel_block(dim))
    return Sizes(padded_n, total, dim, classes, tiles, splits, splits_for(gradient_programs, geometry.device))


def tilings(padded_dim: int, precise: bool, device: torch.device) -> Tilings:
    """Tile shapes that fit the device's shared memory."""
    table = TILINGS if padded_dim <= MOST_CHANNELS else LONG_TILINGS
    _, shared = _device_limits(device)
    return table[shared >= LARGE_SHARED_MEMORY, precise]


@cache
def _device_limits(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and shared memory that a block can have."""
    if device.type != "cuda":
        return 2, 0
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin


@cache
def splits_for(blocks: int, device: torch.device) -> int:
    """Shares of the columns per block of anchors, so that the programs fill whole waves of the multiprocessors."""
    units, _ = _device_limits(device)

    def busy(splits: int) -> float:
        programs = blocks * splits
        return programs / (-(-programs // units) * units)

    return next((s for s in range(1, 17) if busy(s) >= 0.9), max(range(1, 17), key=busy))


def padded(dim: int) -> int:
    """Channels as the kernels see them: a power of two from 16 to 256, then multiples of 128."""
    return max(16, 1 << (dim - 1).bit_length()) if dim <= MOST_CHANNELS else -(-dim // LONG_BLOCK) * LONG_BLOCK


def channel_block(padded_dim: int) -> int:
    """Channels read at once."""
    return padded_dim if padded_dim <= MOST_CHANNELS else LONG_BLOCK


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
