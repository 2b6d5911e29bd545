"""Contrastive distillation in plain PyTorch, a few anchors at a time: memory linear in N + M, on any device.

Forward and backward both walk over blocks of anchors; a block's similarities are computed, used and dropped. With
A_a = 1/(|R| |G(a)|) and B_a = A_a Σ_g σ_ag, the derivative of the loss by a student row f_a, in both its roles, is
``1/τ Σ_j W_aj f_j`` where, s being symmetric,

    W_aj = B_a exp(s_aj − L_a) + B_j exp(s_aj − L_j)     if the labels differ,
    W_aj = −σ_aj (A_a + A_j)                             if they agree,

so that one more product per block replaces what autograd would keep. With the ``pair`` denominator every σ_ag above
carries the factor sigmoid(L_a − s_ag) of its anchor. Contrast rows that are nobody's anchor have A = B = 0.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from incseg.losses.contrastive.backend import ContrastSets, ContrastSettings, State
from incseg.losses.contrastive.dense import unit_vectors

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Similarities per block: on a CPU a few blocks fit its cache, a GPU wants enough work per launch.
BLOCK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 24}
# Stands for −∞ where 0 · −∞ may not become NaN.
FLOOR = -1e30


def _in_full_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Keep autocast from rounding the products; the features say how precise they are."""

    @wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return wrapped


class _Prepared(NamedTuple):
    rows: Tensor  # (n, D) unit anchors
    columns: Tensor  # (n + m, D) unit anchors, then unit contrast rows
    row_labels: Tensor  # (n,), −1 outside the set
    column_labels: Tensor  # (n + m,), −2 outside the set: equal to no row's
    probs: Tensor | None  # (n + m, C)
    floor: Tensor  # (n + m,), 0 in the set and FLOOR outside


class _Block(NamedTuple):
    span: slice
    similarity: Tensor  # (b, n + m), FLOOR outside the set
    same: Tensor  # (b, n + m) bool, the anchor itself included
    sigma: Tensor  # (b, n + m), 0 where not positive


@_in_full_precision
def forward(sets: ContrastSets, settings: ContrastSettings, anchor_count: Tensor | None) -> tuple[Tensor, State]:
    """The anchors' share of the loss, and what ``backward`` needs: (3, n) rows L, A and B."""
    prepared = _prepare(sets)
    valid = prepared.row_labels >= 0
    available = (prepared.column_labels >= 0).sum()
    count = valid.sum() if anchor_count is None else anchor_count
    stats = prepared.rows.new_empty(3, len(valid))
    losses = prepared.rows.new_empty(len(valid))
    for block in _blocks(prepared, settings):
        in_class = block.same.sum(dim=1)
        counted = valid[block.span] & (in_class > 1) & (in_class < available)
        log = block.similarity.masked_fill(block.same, FLOOR).logsumexp(dim=1)
        # Without a negative any finite L will do, its weight is 0; the highest possible one keeps exp(s − L) finite.
        log = torch.where(counted, log, 1 / settings.temperature)
        share = counted / ((in_class - 1).clamp_min(1) * count.clamp_min(1)).to(log.dtype)
        gap = log[:, None] - block.similarity
        pushed = block.sigma * gap.sigmoid() if settings.pair else block.sigma
        gap = F.softplus(gap, threshold=40) if settings.pair else gap
        losses[block.span] = share * torch.linalg.vecdot(block.sigma, gap)
        stats[:, block.span] = torch.stack([log, share, share * pushed.sum(dim=1)])
    return losses.sum(), (stats,)


def statistics(sets: ContrastSets, state: State) -> Tensor:
    """(3, n): L, A and B of every anchor."""
    return state[0][:, : len(sets.anchors)]


@_in_full_precision
def backward(
    sets: ContrastSets,
    settings: ContrastSettings,
    state: State,
    upstream: Tensor,
    contrast_stats: Tensor | None,
) -> Tensor:
    """Gradient for the (n, D) anchors; ``contrast_stats`` (3, m): of contrast rows that are anchors elsewhere."""
    prepared = _prepare(sets)
    log, pull, push = state[0] * torch.stack([torch.ones_like(upstream), upstream, upstream])[:, None]
    columns = torch.stack([log, pull, push])
    if contrast_stats is not None:
        columns = torch.cat([columns, contrast_stats], dim=1)
    gradient = torch.empty_like(prepared.rows)
    for block in _blocks(prepared, settings):
        own = torch.stack([log, pull, push])[:, block.span, None]
        weights = _weights(block, own, settings.pair)
        if not settings.detach_contrast:
            reach = slice(columns.shape[1])
            reached = _Block(block.span, *(x[:, reach] for x in block[1:]))
            weights[:, reach] += _weights(reached, columns[:, None, :], settings.pair)
        gradient[block.span] = weights @ prepared.columns
    return _through_normalisation(gradient / settings.temperature, prepared, sets.anchors)


def _weights(block: _Block, stats: Tensor, pair: bool) -> Tensor:
    """One role's part of W for a block: stats (3, b, 1) for the anchors' role, (3, 1, columns) for the contrast's."""
    log, pull, push = stats
    gap = log - block.similarity
    pulled = gap.sigmoid().mul_(block.sigma).mul_(pull) if pair else block.sigma * pull
    weights: Tensor = gap.neg_().exp_().mul_(push).masked_fill_(block.same, 0).sub_(pulled)
    return weights


def _through_normalisation(gradient: Tensor, prepared: _Prepared, anchors: Tensor) -> Tensor:
    """(g − (g·f) f)/|x|, and 0 for rows outside the set or of no length."""
    rows = prepared.rows
    gradient = gradient - torch.linalg.vecdot(gradient, rows)[:, None] * rows
    length = torch.linalg.vector_norm(anchors.to(rows.dtype), dim=1)
    keep = (prepared.row_labels >= 0) & (length > 0)
    return torch.where(keep[:, None], gradient / length[:, None], 0).to(anchors.dtype)


def _prepare(sets: ContrastSets) -> _Prepared:
    rows = unit_vectors(sets.anchors)
    columns = torch.cat([rows, unit_vectors(sets.contrast).to(rows.dtype)])
    labels = torch.cat([sets.anchor_labels, sets.contrast_labels]).long()
    probs = None
    if sets.anchor_probs is not None and sets.contrast_probs is not None:
        probs = torch.cat([sets.anchor_probs, sets.contrast_probs]).to(rows.dtype)
    inside = labels >= 0
    floor = torch.where(inside, 0.0, FLOOR).to(rows.dtype)
    row_labels = torch.where(inside, labels, -1)[: len(rows)]
    return _Prepared(rows, columns, row_labels, torch.where(inside, labels, -2), probs, floor)


def _blocks(prepared: _Prepared, settings: ContrastSettings) -> Iterator[_Block]:
    n, total = len(prepared.rows), len(prepared.columns)
    size = max(16, BLOCK_ELEMENTS.get(prepared.rows.device.type, BLOCK_ELEMENTS["cpu"]) // total)
    for start in range(0, n, size):
        yield _block(prepared, slice(start, min(start + size, n)), settings.temperature)


def _block(prepared: _Prepared, span: slice, temperature: float) -> _Block:
    similarity = torch.addmm(prepared.floor, prepared.rows[span], prepared.columns.T, alpha=1 / temperature)
    same = prepared.row_labels[span, None] == prepared.column_labels
    if prepared.probs is None:
        sigma = same.to(similarity.dtype)
    else:
        sigma = (prepared.probs[span] @ prepared.probs.T).mul_(same)
    sigma.diagonal(span.start).zero_()
    return _Block(span, similarity, same, sigma)
