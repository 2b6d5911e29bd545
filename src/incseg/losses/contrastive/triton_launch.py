"""The Triton backend of contrastive distillation: buffers, tile shapes and launches of ``triton_kernels``.

Nothing of size N×M is stored and nothing waits for the device; memory is linear in N + M.
"""

import math
import os
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from incseg.losses.contrastive import triton_kernels as kernels
from incseg.losses.contrastive.backend import ContrastSets, ContrastSettings, State

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

ROWS_AT_ONCE = 128 if INTERPRETED else 4  # rows per program where no tiles are involved; each costs an interpreter much
# torch.sort takes a dozen launches, counting takes one and n² + m² comparisons.
COUNTING_SORT_UP_TO = 8192
ALIGN = 128  # rows of a segment are padded to this, so that no tile holds rows of two segments
LOG2E = math.log2(math.e)
# Up to this many powers of two either way, Σ exp s and exp(−L) stay inside float32 without a running maximum.
UNSHIFTED_RANGE = 64.0


class Arrangement(NamedTuple):
    """Rows in the order the kernels stream them: n anchors, padding, m contrast rows, padding."""

    order: Tensor  # (n + m,) int64, position in the sorted rows -> row of [anchors, contrast]
    unit: Tensor  # (total, D') float16, unit rows times √(log₂e/τ)
    residual: Tensor  # (total, D') float16, what rounding took from ``unit``; ``unit`` itself unless precise
    probs: Tensor  # (total, C') float32
    # int32: labels (total), −1 outside the set; start and end of the anchor's class among anchors and among contrast
    # (4 × padded n); valid anchors and valid contrast rows (2)
    table: Tensor

    @property
    def padded_n(self) -> int:
        """Anchors with padding: where the contrast rows start."""
        return (self.table.shape[0] - self.unit.shape[0] - 2) // 4

    @property
    def precise(self) -> bool:
        """Whether products keep float32's accuracy."""
        return self.residual.data_ptr() != self.unit.data_ptr()

    @property
    def shape(self) -> dict[str, int | bool]:
        """Compile-time sizes every tile kernel takes."""
        dim = self.unit.shape[1]
        return {"DIM": dim, "WIDTH": channel_block(dim), "PRECISE": self.precise}

    @property
    def classes(self) -> dict[str, int]:
        """Compile-time sizes of the kernels that read probabilities."""
        return {"CLASSES": self.probs.shape[1], "CLASS_BLOCK": CLASS_BLOCK}


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


CLASS_BLOCK = 32
MOST_CHANNELS, LONG_BLOCK = 256, 128  # rows read at once, or in blocks of so many channels
LARGE_SHARED_MEMORY = 220 * 1024  # bytes per block: Hopper and newer
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


def forward(sets: ContrastSets, settings: ContrastSettings, anchor_count: Tensor | None) -> tuple[Tensor, State]:
    """The anchors' share of the loss, and what ``backward`` needs; ``anchor_count`` is |R|, by default those here."""
    rows, stats = arrange(sets, settings)
    padded_n, total = rows.padded_n, rows.unit.shape[0]
    tiles, running_max = tilings(rows), needs_running_max(settings)
    blocks = padded_n // tiles.log_sums.rows
    splits = splits_for(blocks, rows.unit.device)
    kernels.log_sums[(blocks, splits)](
        rows.unit, rows.residual, rows.table, stats, padded_n, total, splits,
        **rows.shape, RUNNING_MAX=running_max, **tiles.log_sums.launch(),
    )  # fmt: skip
    kernels.positives[(padded_n // tiles.positives.rows,)](
        rows.unit, rows.residual, rows.probs, rows.table, stats, anchor_count,
        padded_n, total, splits, LOG2E / settings.temperature,
        **rows.shape, **rows.classes, PAIR=settings.pair, RUNNING_MAX=running_max, **tiles.positives.launch(),
    )  # fmt: skip
    return stats[4 * total : 5 * total].sum(), (*rows, stats)


def statistics(sets: ContrastSets, state: State) -> Tensor:
    """(3, n): L (in powers of two), A and B of every anchor, in the anchors' own order."""
    rows, stats = Arrangement(*state[:-1]), state[-1]
    n = len(sets.anchors)
    out = torch.empty(3, n, device=stats.device)
    out[:, rows.order[:n]] = stats[: 3 * len(rows.unit)].view(3, -1)[:, :n]
    return out


def backward(
    sets: ContrastSets,
    settings: ContrastSettings,
    state: State,
    upstream: Tensor,
    contrast_stats: Tensor | None,
) -> Tensor:
    """Gradient for the (n, D) anchors; ``contrast_stats`` (3, m'): of the first contrast rows, anchors elsewhere."""
    rows, stats = Arrangement(*state[:-1]), state[-1]
    if contrast_stats is not None:
        stats = _with_contrast(rows, stats, contrast_stats, upstream, len(sets.anchors))
        upstream = torch.ones_like(upstream)
    device, padded_n, (total, dim) = rows.unit.device, rows.padded_n, rows.unit.shape
    tiling = tilings(rows).gradient
    blocks, channel_blocks = padded_n // tiling.rows, dim // channel_block(dim)
    splits = splits_for(blocks * channel_blocks, device)
    partial = torch.empty(splits, padded_n, dim, device=device)
    kernels.gradient[(blocks, splits, channel_blocks)](
        rows.unit, rows.residual, rows.probs, rows.table, stats, partial,
        padded_n, total, splits,
        **rows.shape, **rows.classes, PAIR=settings.pair, DETACH=settings.detach_contrast,
        RUNNING_MAX=needs_running_max(settings), **tiling.launch(),
    )  # fmt: skip
    anchors = sets.anchors
    gradient = torch.empty(anchors.shape, dtype=anchors.dtype, device=device)
    # 1/τ from the similarity, and one factor √(log₂e/τ) too many in the stored rows.
    factor = 1 / settings.temperature / math.sqrt(LOG2E / settings.temperature)
    kernels.finish[(-(-len(anchors) // ROWS_AT_ONCE),)](
        anchors, rows.order, rows.table, stats, partial, upstream, gradient,
        len(anchors), padded_n, total, splits, anchors.shape[1], factor, anchors.stride(),
        PADDED_DIM=dim, ROWS=ROWS_AT_ONCE, WIDTH=channel_block(dim), num_warps=4,
    )  # fmt: skip
    return gradient


def arrange(sets: ContrastSets, settings: ContrastSettings) -> tuple[Arrangement, Tensor]:
    """Normalise, round and sort the rows of both sets, with their labels and probabilities; and clear statistics."""
    (n, dim), m = sets.anchors.shape, len(sets.contrast)
    classes = 0 if sets.anchor_probs is None else sets.anchor_probs.shape[1]
    # Without probabilities the kernel still wants two tensors; it reads none of their zero columns.
    anchor_probs = sets.anchors if sets.anchor_probs is None else sets.anchor_probs
    contrast_probs = sets.contrast if sets.contrast_probs is None else sets.contrast_probs
    keys, order = _sorted(sets.anchor_labels, sets.contrast_labels)
    padded_n, total = _aligned(n), _aligned(n) + _aligned(m)
    out = _empty_arrangement(order, padded_n, total, dim=padded(dim), classes=classes, precise=is_precise(sets))
    shares = 2 * splits_for(padded_n // tilings(out).log_sums.rows, order.device)
    stats = torch.empty(6 * total + shares * padded_n, device=order.device)
    kernels.arrange[(total // ROWS_AT_ONCE,)](
        sets.anchors, sets.contrast, anchor_probs, contrast_probs, keys, *out, stats,
        padded_n, total, n, m, (n + m).bit_length(), dim, classes, math.sqrt(LOG2E / settings.temperature),
        sets.anchors.stride(), sets.contrast.stride(), anchor_probs.stride(), contrast_probs.stride(),
        PADDED_DIM=out.unit.shape[1], PADDED_CLASSES=out.probs.shape[1], ROWS=ROWS_AT_ONCE, WIDTH=out.shape["WIDTH"],
        PRECISE=out.shape["PRECISE"], num_warps=4,
    )  # fmt: skip
    return out, stats


def _empty_arrangement(
    order: Tensor, padded_n: int, total: int, *, dim: int, classes: int, precise: bool
) -> Arrangement:
    device = order.device
    unit = torch.empty(total, dim, dtype=torch.float16, device=device)
    residual = torch.empty_like(unit) if precise else unit
    probs = torch.empty(total, -(-classes // CLASS_BLOCK) * CLASS_BLOCK, device=device)
    table = torch.empty(total + 4 * padded_n + 2, dtype=torch.int32, device=device)
    return Arrangement(order, unit, residual, probs, table)


def _sorted(anchor_labels: Tensor, contrast_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted keys (n + m,) int32, anchors before contrast, and the order that sorts them, stable."""
    n, m = anchor_labels.shape[0], contrast_labels.shape[0]
    strides = anchor_labels.stride(0), contrast_labels.stride(0)
    keys = torch.empty(n + m, dtype=torch.int32, device=anchor_labels.device)
    if max(n, m) > COUNTING_SORT_UP_TO:
        kernels.sort_keys[(-(-(n + m) // 1024),)](anchor_labels, contrast_labels, keys, n, m, *strides, BLOCK=1024)
        keys, order = torch.sort(keys, stable=True)
        return keys, order
    order = torch.empty(n + m, dtype=torch.int64, device=anchor_labels.device)
    kernels.sort_by_counting[(-(-n // 64) + -(-m // 64),)](
        anchor_labels, contrast_labels, keys, order, n, m, *strides, ROWS=64, COLUMNS=64
    )
    return keys, order


def _with_contrast(rows: Arrangement, stats: Tensor, contrast_stats: Tensor, upstream: Tensor, n: int) -> Tensor:
    """Statistics with the anchors' A and B times upstream, and those of contrast rows that are anchors elsewhere."""
    order = rows.order[n:] - n  # sorted position among the contrast rows -> contrast row
    missing = len(order) - contrast_stats.shape[1]
    found = torch.nn.functional.pad(contrast_stats, (0, missing))[:, order]
    table = stats[: 6 * len(rows.unit)].view(6, -1)
    table = torch.cat([table[:1], table[1:] * upstream])
    elsewhere = slice(rows.padded_n, rows.padded_n + len(order))
    table[:3, elsewhere] = found
    table[3, elsewhere] = found[2] * torch.exp2(-found[0])
    table[5, 0] = torch.linalg.vector_norm(table[2], ord=torch.inf)
    return table


def needs_running_max(settings: ContrastSettings) -> bool:
    """Whether exp s can leave float32's range at this temperature."""
    return LOG2E / settings.temperature > UNSHIFTED_RANGE


def is_precise(sets: ContrastSets) -> bool:
    """Whether products must keep float32's accuracy: float32 features, unless the user allows TF32, which is as coarse
    as float16 here."""
    single = sets.anchors.dtype == sets.contrast.dtype == torch.float32
    return single and torch.backends.cuda.matmul.fp32_precision != "tf32"


def tilings(rows: Arrangement) -> Tilings:
    """Tile shapes that fit the device's shared memory."""
    table = TILINGS if rows.unit.shape[1] <= MOST_CHANNELS else LONG_TILINGS
    _, shared = _device_limits(rows.unit.device)
    return table[shared >= LARGE_SHARED_MEMORY, rows.precise]


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
