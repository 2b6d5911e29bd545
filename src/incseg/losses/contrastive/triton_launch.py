"""The Triton backend of contrastive distillation: buffers and launches of ``triton_kernels``.

Nothing of size N×M is stored and nothing waits for the device; memory is linear in N + M. Up to some 4096 anchors the
device is quicker than the host that launches its kernels: hence few buffers, and launches that are prepared once.
"""

import math
import os
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from incseg.losses.contrastive import triton_kernels as kernels
from incseg.losses.contrastive.backend import ContrastSets, ContrastSettings, State
from incseg.losses.contrastive.triton_sizes import (
    CLASS_BLOCK,
    KEPT,
    Geometry,
    Sizes,
    channel_block,
    geometry_of,
    sizes_of,
)
from incseg.losses.triton_support import Launch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

ROWS_AT_ONCE = 128 if INTERPRETED else 4  # rows per program where no tiles are involved; each costs an interpreter much
# torch.sort takes a dozen launches, counting takes one and n² + m² comparisons.
COUNTING_SORT_UP_TO = 8192
LOG2E = math.log2(math.e)
# Up to this many powers of two either way, Σ exp s and exp(−L) stay inside float32 without a running maximum.
UNSHIFTED_RANGE = 64.0


class Rows(NamedTuple):
    """The arranged rows: one buffer per number type, which ``triton_kernels`` divides up."""

    unit: Tensor  # (1 or 2, total × D') float16: unit rows times √(log₂e/τ); if precise, what rounding took from them
    stats: Tensor  # float32: statistics (6 × total), probabilities (total × C'), shares of ``log_sums``
    # int32: labels (total), −1 outside the set; start and end of the anchor's class among anchors and among contrast
    # (4 × padded n); valid anchors and valid contrast rows (2); position in the sorted rows -> row of
    # [anchors, contrast] (n + m); sorted keys (n + m)
    table: Tensor

    @property
    def precise(self) -> bool:
        """Whether products keep float32's accuracy; forward decides it for backward."""
        return self.unit.shape[0] == 2


class Launches(NamedTuple):
    """The kernels, ready for their buffers."""

    sizes: Sizes
    sort_keys: Launch
    sort_by_counting: Launch
    arrange: Launch
    log_sums: Launch
    positives: Launch
    gradient: Launch
    finish: Launch


def forward(sets: ContrastSets, settings: ContrastSettings, anchor_count: Tensor | None) -> tuple[Tensor, State]:
    """The anchors' share of the loss, and what ``backward`` needs; ``anchor_count`` is |R|, by default those here."""
    geometry = geometry_of(sets, is_precise(sets))
    launches = launches_of(geometry, settings)
    rows = empty_rows(geometry, launches.sizes)
    sort(sets, launches, rows.table)
    # Without probabilities the kernel still wants two tensors; it reads none of their zero columns.
    anchor_probs = sets.anchors if sets.anchor_probs is None else sets.anchor_probs
    contrast_probs = sets.contrast if sets.contrast_probs is None else sets.contrast_probs
    launches.arrange(sets.anchors, sets.contrast, anchor_probs, contrast_probs, *rows)
    launches.log_sums(*rows)
    launches.positives(*rows, anchor_count)
    total = launches.sizes.total
    return rows.stats[4 * total : 5 * total].sum(), rows


def statistics(sets: ContrastSets, state: State) -> Tensor:
    """(3, n): L (in powers of two), A and B of every anchor, in the anchors' own order."""
    rows, n = Rows(*state), len(sets.anchors)
    sizes = sizes_of(geometry_of(sets, rows.precise))
    order = rows.table[sizes.order_at :][:n].long()
    out = torch.empty(3, n, device=order.device)
    out[:, order] = rows.stats[: 3 * sizes.total].view(3, -1)[:, :n]
    return out


def backward(
    sets: ContrastSets,
    settings: ContrastSettings,
    state: State,
    upstream: Tensor,
    contrast_stats: Tensor | None,
) -> Tensor:
    """Gradient for the (n, D) anchors; ``contrast_stats`` (3, m'): of the first contrast rows, anchors elsewhere."""
    rows = Rows(*state)
    geometry = geometry_of(sets, rows.precise)
    launches = launches_of(geometry, settings)
    sizes = launches.sizes
    if contrast_stats is not None:
        rows = _with_contrast(rows, contrast_stats, upstream, geometry, sizes)
        upstream = torch.ones_like(upstream)
    partial = torch.empty(sizes.gradient_splits * sizes.padded_n * sizes.dim, device=geometry.device)
    launches.gradient(*rows, partial)
    gradient = torch.empty_like(sets.anchors, memory_format=torch.contiguous_format)
    launches.finish(sets.anchors, rows.stats, rows.table, partial, upstream, gradient)
    return gradient


def sort(sets: ContrastSets, launches: Launches, table: Tensor) -> None:
    """Write sorted int32 keys, anchors before contrast, and the order that sorts them, stable."""
    n, m = sets.anchor_labels.shape[0], sets.contrast_labels.shape[0]
    if max(n, m) <= COUNTING_SORT_UP_TO:
        launches.sort_by_counting(sets.anchor_labels, sets.contrast_labels, table)
        return
    keys = torch.empty(n + m, dtype=torch.int32, device=table.device)
    launches.sort_keys(sets.anchor_labels, sets.contrast_labels, keys)
    keys, order = torch.sort(keys, stable=True)
    torch.cat([order.int(), keys], out=table[launches.sizes.order_at :])


def empty_rows(geometry: Geometry, sizes: Sizes) -> Rows:
    """Buffers of these sizes."""
    parts = 2 if geometry.precise else 1
    floats = (6 + sizes.classes) * sizes.total + 2 * sizes.splits * sizes.padded_n
    integers = sizes.order_at + 2 * (geometry.n + geometry.m)
    return Rows(
        torch.empty(parts, sizes.total * sizes.dim, dtype=torch.float16, device=geometry.device),
        torch.empty(floats, dtype=torch.float32, device=geometry.device),
        torch.empty(integers, dtype=torch.int32, device=geometry.device),
    )


@lru_cache(maxsize=KEPT)
def launches_of(geometry: Geometry, settings: ContrastSettings) -> Launches:
    """Every kernel with its grid, numbers and compile-time constants."""
    sizes = sizes_of(geometry)
    return Launches(
        sizes,
        *_sorting(geometry, sizes),
        _arranging(geometry, sizes, settings),
        *_on_tiles(geometry, sizes, settings),
        _finishing(geometry, sizes, settings),
    )


def _sorting(geometry: Geometry, sizes: Sizes) -> tuple[Launch, Launch]:
    n, m, strides = geometry.n, geometry.m, geometry.label_strides
    return (
        Launch(kernels.sort_keys, (-(-(n + m) // 1024),), n, m, *strides, BLOCK=1024),
        Launch(
            kernels.sort_by_counting, (-(-n // 64) + -(-m // 64),),
            sizes.padded_n, sizes.total, n, m, *strides, ROWS=64, COLUMNS=64,
        ),
    )  # fmt: skip


def _arranging(geometry: Geometry, sizes: Sizes, settings: ContrastSettings) -> Launch:
    n, m = geometry.n, geometry.m
    return Launch(
        kernels.arrange, (sizes.total // ROWS_AT_ONCE,),
        sizes.padded_n, sizes.total, n, m, (n + m).bit_length(), geometry.dim, geometry.classes,
        math.sqrt(LOG2E / settings.temperature), *geometry.strides,
        PADDED_DIM=sizes.dim, PADDED_CLASSES=sizes.classes, ROWS=ROWS_AT_ONCE, WIDTH=channel_block(sizes.dim),
        PRECISE=geometry.precise, num_warps=4,
    )  # fmt: skip


def _on_tiles(geometry: Geometry, sizes: Sizes, settings: ContrastSettings) -> tuple[Launch, Launch, Launch]:
    """``log_sums``, ``positives`` and ``gradient``."""
    padded_n, total, dim, tiles = sizes.padded_n, sizes.total, sizes.dim, sizes.tilings
    shape = {"DIM": dim, "WIDTH": channel_block(dim), "CLASSES": sizes.classes, "PRECISE": geometry.precise}
    shape["RUNNING_MAX"] = needs_running_max(settings)
    pairs = shape | {"CLASS_BLOCK": CLASS_BLOCK, "PAIR": settings.pair}
    channel_blocks = dim // channel_block(dim)
    return (
        Launch(
            kernels.log_sums, (padded_n // tiles.log_sums.rows, sizes.splits),
            padded_n, total, sizes.splits, **shape, **tiles.log_sums.launch(),
        ),
        Launch(
            kernels.positives, (padded_n // tiles.positives.rows,),
            padded_n, total, sizes.splits, LOG2E / settings.temperature, **pairs, **tiles.positives.launch(),
        ),
        Launch(
            kernels.gradient, (padded_n // tiles.gradient.rows, sizes.gradient_splits, channel_blocks),
            padded_n, total, sizes.gradient_splits,
            **pairs, DETACH=settings.detach_contrast, **tiles.gradient.launch(),
        ),
    )  # fmt: skip


def _finishing(geometry: Geometry, sizes: Sizes, settings: ContrastSettings) -> Launch:
    # 1/τ from the similarity, and one factor √(log₂e/τ) too many in the stored rows.
    factor = 1 / settings.temperature / math.sqrt(LOG2E / settings.temperature)
    return Launch(
        kernels.finish, (-(-geometry.n // ROWS_AT_ONCE),),
        sizes.padded_n, sizes.total, geometry.n, sizes.gradient_splits, geometry.dim, factor, *geometry.strides[:2],
        PADDED_DIM=sizes.dim, ROWS=ROWS_AT_ONCE, WIDTH=channel_block(sizes.dim), num_warps=4,
    )  # fmt: skip


def _with_contrast(rows: Rows, contrast_stats: Tensor, upstream: Tensor, geometry: Geometry, sizes: Sizes) -> Rows:
    """Statistics with the anchors' A and B times upstream, and those of contrast rows that are anchors elsewhere."""
    n, m = geometry.n, geometry.m
    order = rows.table[sizes.order_at + n :][:m].long() - n  # sorted position among the contrast rows -> contrast row
    found = torch.nn.functional.pad(contrast_stats, (0, m - contrast_stats.shape[1]))[:, order]
    stats = rows.stats.clone()
    table = stats[: 6 * sizes.total].view(6, -1)
    table[1:] *= upstream
    elsewhere = slice(sizes.padded_n, sizes.padded_n + m)
    table[:3, elsewhere] = found
    table[3, elsewhere] = found[2] * torch.exp2(-found[0])
    table[5, 0] = torch.linalg.vector_norm(table[2], ord=torch.inf)
    return rows._replace(stats=stats)


def needs_running_max(settings: ContrastSettings) -> bool:
    """Whether exp s can leave float32's range at this temperature."""
    return LOG2E / settings.temperature > UNSHIFTED_RANGE


def is_precise(sets: ContrastSets) -> bool:
    """Whether products must keep float32's accuracy: float32 features, unless the user allows TF32, which is as coarse
    as float16 here."""
    single = sets.anchors.dtype == sets.contrast.dtype == torch.float32
    return single and torch.backends.cuda.matmul.fp32_precision != "tf32"
