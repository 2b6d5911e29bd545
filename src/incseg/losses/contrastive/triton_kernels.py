"""The Triton kernels of contrastive distillation: similarities are computed tile by tile and never stored.

All rows are first *arranged*: normalised, and sorted by label, anchors first, then the rest of the contrast set. What
follows streams over tiles of that arrangement, as flash attention does without values:

1. ``log_sums``   S_a = Σ_{j: label differs} exp s_aj, for a share of the columns;
2. ``positives``  per anchor, over the contiguous columns of its class: the loss and the weights of its gradient;
3. ``gradient``   ∂loss/∂f_a = 1/τ Σ_j W_aj f_j with both roles of a student row in one pass, because s_aj = s_ja:
   W_aj = B_a exp(s_aj − L_a) + B_j exp(s_aj − L_j) where labels differ, −σ_aj (A_a + A_j) where they agree;
4. ``finish``     adds the shares, projects out the direction of f_a and puts the rows back in their order.

A_a = 1/(|R| |G(a)|) and B_a = A_a Σ_g σ_ag; with ``pair`` both sums carry the factor sigmoid(L_a − s_ag).
Similarities are kept in units of log₂, so that exp is one instruction: rows are stored times √(log₂e/τ).
Equal inputs give equal bits: sums have a fixed order, without atomic additions. The one atomic operation, a maximum in
``positives``, does not depend on the order.
"""

# Triton's language is untyped, its compile-time parameters are upper case and its kernels take many buffers:
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803

import triton
import triton.language as tl

# Constants are local to the functions, because Triton compares the global ones at every launch, on the host.
# Allocating memory costs the host time too: there is one buffer per number type, and the functions below divide it up.


@triton.jit
def _keys():
    """What sorts rows outside the set behind all classes, and the contrast rows behind the anchors."""
    NO_CLASS: tl.constexpr = 1 << 29  # noqa: N806
    CONTRAST: tl.constexpr = 1 << 30  # noqa: N806
    return NO_CLASS, CONTRAST


@triton.jit
def _residual(unit, padded_total, DIM: tl.constexpr):
    """What rounding took from the unit rows; it follows them if products are PRECISE, and is not there otherwise."""
    return unit + padded_total.to(tl.int64) * DIM


@triton.jit
def _statistics(stats, padded_total):
    """Rows of the statistics, one number per arranged row: L, A, B, B exp(−L), the anchor's loss, max B (one number).

    The float32 buffer goes on with the probabilities and the shares of ``log_sums``.
    """
    return (
        stats,
        stats + padded_total,
        stats + 2 * padded_total,
        stats + 3 * padded_total,
        stats + 4 * padded_total,
        stats + 5 * padded_total,
    )


@triton.jit
def _probabilities(stats, padded_total):
    """CLASSES numbers per arranged row, behind the statistics."""
    return stats + 6 * padded_total


@triton.jit
def _shares(stats, padded_total, CLASSES: tl.constexpr):
    """The shares of ``log_sums``: padded n sums per share, then with a running maximum as many maxima."""
    return _probabilities(stats, padded_total) + padded_total.to(tl.int64) * CLASSES


@triton.jit
def _table(table, padded_n, padded_total):
    """Parts of the int32 buffer: labels, bounds of the anchors' classes (4 × padded n), counts of valid rows (2)."""
    return table, table + padded_total, table + padded_total + 4 * padded_n


@triton.jit
def _order(table, padded_n, padded_total):
    """Position in the sorted rows -> row of [anchors, contrast], behind the counts; n + m sorted keys follow."""
    return table + padded_total + 4 * padded_n + 2


@triton.jit
def _key(labels, i, stride, size):
    """The sort key of rows of one segment, and a number above all keys where there is no row."""
    NO_CLASS, _ = _keys()  # noqa: N806
    label = tl.load(labels + i.to(tl.int64) * stride, mask=i < size, other=0).to(tl.int32)
    return tl.where(i < size, tl.where(label < 0, NO_CLASS, label), 2147483647)


@triton.jit(do_not_specialize=["n", "m"])
def sort_keys(anchor_labels, contrast_labels, keys, n, m, anchor_stride, contrast_stride, BLOCK: tl.constexpr):
    """Write one int32 per row that sorts anchors before contrast, classes ascending, rows outside the set last."""
    _, CONTRAST = _keys()  # noqa: N806
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(keys + i, _key(anchor_labels, i, anchor_stride, n), mask=i < n)
    i -= n
    tl.store(keys + n + i, _key(contrast_labels, i, contrast_stride, m) + CONTRAST, mask=(i >= 0) & (i < m))


@triton.jit
def _place(labels, stride, size, block, offset, base, keys, order, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sort a block of rows of one segment by counting the rows that come before each."""
    i = block * ROWS + tl.arange(0, ROWS)
    key = _key(labels, i, stride, size)
    before = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(0, size, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        earlier = (j[None, :] < i[:, None]).to(tl.int32)  # of equal keys the earlier row comes first
        before += (_key(labels, j, stride, size)[None, :] < key[:, None] + earlier).to(tl.int32)
    place = tl.sum(before, axis=1)
    tl.store(keys + offset + place, key + base, mask=i < size)
    tl.store(order + offset + place, offset + i, mask=i < size)


@triton.jit(do_not_specialize=["n", "m"])
def sort_by_counting(
    anchor_labels, contrast_labels, table, padded_n, padded_total, n, m, anchor_stride, contrast_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sorted keys and the order that sorts them, in one launch: quadratic, and for small sets the quickest."""
    _, CONTRAST = _keys()  # noqa: N806
    order = _order(table, padded_n, padded_total)
    keys = order + n + m
    block = tl.program_id(0)
    anchor_blocks = tl.cdiv(n, ROWS)
    if block < anchor_blocks:
        _place(anchor_labels, anchor_stride, n, block, 0, 0, keys, order, ROWS, COLUMNS)
    else:
        block -= anchor_blocks
        _place(contrast_labels, contrast_stride, m, block, n, CONTRAST, keys, order, ROWS, COLUMNS)


@triton.jit
def _lower_bound(keys, total, target, steps):
    """First position in the sorted keys that is not below the target, for a block of targets."""
    low = target * 0
    high = low + total
    for _ in range(steps):
        active = low < high
        middle = (low + high) // 2
        below = tl.load(keys + middle, mask=active, other=0) < target
        low = tl.where(active & below, middle + 1, low)
        high = tl.where(active & (below == 0), middle, high)
    return low


@triton.jit
def _load_either(
    anchors, anchor_row, anchor_column, contrast, contrast_row, contrast_column,
    source, n, column, is_anchor, is_contrast, inside,
):  # fmt: skip
    """Rows of the anchors or of the contrast set, as float32; zeros where there is neither."""
    first = anchors + source[:, None] * anchor_row + column[None, :] * anchor_column
    second = contrast + (source - n)[:, None] * contrast_row + column[None, :] * contrast_column
    x = tl.load(first, mask=is_anchor[:, None] & inside[None, :], other=0).to(tl.float32)
    return x + tl.load(second, mask=is_contrast[:, None] & inside[None, :], other=0).to(tl.float32)


@triton.jit(do_not_specialize=["n", "m", "steps"])
def arrange(
    anchors, contrast, anchor_probs, contrast_probs, unit, stats, table,
    padded_n, padded_total, n, m, steps, dim, classes, root_scale,
    anchor_row, anchor_column, contrast_row, contrast_column,
    anchor_probs_row, anchor_probs_column, contrast_probs_row, contrast_probs_column,
    PADDED_DIM: tl.constexpr, PADDED_CLASSES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISE: tl.constexpr,
):  # fmt: skip
    """Gather rows in sorted order: unit vectors times √(log₂e/τ), labels (−1: outside), probabilities, class bounds.

    Clears the statistics, so that rows which are nobody's anchor have none.
    """
    NO_CLASS, CONTRAST = _keys()  # noqa: N806
    labels, bounds, counts = _table(table, padded_n, padded_total)
    order = _order(table, padded_n, padded_total)
    keys = order + n + m
    residual = _residual(unit, padded_total, PADDED_DIM)
    probs = _probabilities(stats, padded_total)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_anchor = position < n
    index = position - padded_n
    is_contrast = (index >= 0) & (index < m)
    sorted_at = tl.where(is_anchor, position, n + index)
    exists = is_anchor | is_contrast
    source = tl.load(order + sorted_at, mask=exists, other=0).to(tl.int64)
    class_id = tl.load(keys + sorted_at, mask=exists, other=NO_CLASS) & (CONTRAST - 1)
    tl.store(labels + position, tl.where(class_id == NO_CLASS, -1, class_id))
    for row in tl.static_range(6):
        tl.store(stats + row * padded_total + position, tl.zeros((ROWS,), tl.float32))

    squares = tl.zeros((ROWS,), tl.float32)
    for start in range(0, PADDED_DIM, WIDTH):
        d = start + tl.arange(0, WIDTH)
        x = _load_either(
            anchors, anchor_row, anchor_column, contrast, contrast_row, contrast_column,
            source, n, d, is_anchor, is_contrast, d < dim,
        )  # fmt: skip
        squares += tl.sum(x * x, axis=1)
    inverse = tl.where(squares > 0, 1.0 / tl.sqrt(tl.where(squares > 0, squares, 1.0)), 0.0)
    for start in range(0, PADDED_DIM, WIDTH):
        d = start + tl.arange(0, WIDTH)
        x = _load_either(
            anchors, anchor_row, anchor_column, contrast, contrast_row, contrast_column,
            source, n, d, is_anchor, is_contrast, d < dim,
        )  # fmt: skip
        x *= (inverse * root_scale)[:, None]
        at = position.to(tl.int64)[:, None] * PADDED_DIM + d[None, :]
        rounded = x.to(tl.float16)
        tl.store(unit + at, rounded)
        if PRECISE:
            tl.store(residual + at, (x - rounded.to(tl.float32)).to(tl.float16))
    for start in range(0, PADDED_CLASSES, 16):
        c = start + tl.arange(0, 16)
        p = _load_either(
            anchor_probs, anchor_probs_row, anchor_probs_column,
            contrast_probs, contrast_probs_row, contrast_probs_column,
            source, n, c, is_anchor, is_contrast, c < classes,
        )  # fmt: skip
        tl.store(probs + position.to(tl.int64)[:, None] * PADDED_CLASSES + c[None, :], p)

    length = n + m
    if tl.program_id(0) * ROWS < n:
        for which in tl.static_range(4):
            target = class_id + (which % 2) + (which // 2) * CONTRAST
            bound = _lower_bound(keys, length, target, steps) - (which // 2) * n
            tl.store(bounds + which * padded_n + position, bound, mask=is_anchor)
    if tl.program_id(0) == 0:
        segment = tl.arange(0, 2)
        ends = _lower_bound(keys, length, NO_CLASS + segment * CONTRAST, steps)
        tl.store(counts + segment, ends - segment * n)


@triton.jit
def _product(a, a_low, b, b_low, acc, PRECISE: tl.constexpr):
    """Return acc + a·b in float32; with PRECISE the float16 remainders of both operands join in (22 bits of each)."""
    acc = tl.dot(a, b, acc)
    if PRECISE:
        acc = tl.dot(a, b_low, acc)
        acc = tl.dot(a_low, b, acc)
    return acc


@triton.jit
def _tile(rows, first, start, ROWS: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr):
    """(ROWS, WIDTH) of arranged rows of DIM numbers: from row ``first`` and number ``start`` on."""
    at = tl.arange(0, ROWS)[:, None] * DIM + tl.arange(0, WIDTH)[None, :]
    return tl.load(rows + first.to(tl.int64) * DIM + start + at)


@triton.jit
def _similarities(
    q, q_low, k, k_low, unit, residual, row0, column0,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """(ROWS, COLUMNS) tile of s·log₂e: from q and k if they hold all channels, else read block by block."""
    s = tl.zeros((ROWS, COLUMNS), tl.float32)
    if DIM == WIDTH:
        s = _product(q, q_low, tl.trans(k), tl.trans(k_low), s, PRECISE)
    else:
        for d in range(0, DIM, WIDTH):
            a = _tile(unit, row0, d, ROWS, WIDTH, DIM)
            b = _tile(unit, column0, d, COLUMNS, WIDTH, DIM)
            a_low = _tile(residual, row0, d, ROWS, WIDTH, DIM) if PRECISE else a
            b_low = _tile(residual, column0, d, COLUMNS, WIDTH, DIM) if PRECISE else b
            s = _product(a, a_low, tl.trans(b), tl.trans(b_low), s, PRECISE)
    return s


@triton.jit
def _uncertainty(
    probs, row0, column0, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr
):
    """(ROWS, COLUMNS) tile of σ = P̄_a · P̄_g (eq. 10), or ones without probabilities."""
    if CLASSES == 0:
        sigma = tl.full((ROWS, COLUMNS), 1.0, tl.float32)
    elif CLASSES == BLOCK:
        p = _tile(probs, row0, 0, ROWS, BLOCK, CLASSES)
        q = _tile(probs, column0, 0, COLUMNS, BLOCK, CLASSES)
        sigma = tl.dot(p, tl.trans(q), input_precision="tf32x3")
    else:
        sigma = tl.zeros((ROWS, COLUMNS), tl.float32)
        for c in range(0, CLASSES, BLOCK):
            p = _tile(probs, row0, c, ROWS, BLOCK, CLASSES)
            q = _tile(probs, column0, c, COLUMNS, BLOCK, CLASSES)
            sigma = tl.dot(p, tl.trans(q), sigma, input_precision="tf32x3")
    return sigma


@triton.jit
def _class_range(bounds, counts, padded_n, row0, ROWS: tl.constexpr):
    """Columns of the block's classes, start and end among anchors and among contrast; whether it is one class."""
    last = tl.minimum(row0 + ROWS, tl.load(counts)) - 1
    start = tl.load(bounds + row0)
    end = tl.load(bounds + padded_n + last)
    contrast_start = tl.load(bounds + 2 * padded_n + row0)
    contrast_end = tl.load(bounds + 3 * padded_n + last)
    one_class = tl.load(bounds + row0) == tl.load(bounds + last)
    return start, end, contrast_start, contrast_end, one_class


@triton.jit
def _negative_tiles(bounds, counts, padded_n, row0, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Tiles that can hold a negative of this block: how many of either segment, and the runs of tiles to leave out."""
    start, end, contrast_start, contrast_end, one_class = _class_range(bounds, counts, padded_n, row0, ROWS)
    skip = tl.cdiv(start, COLUMNS)
    width = tl.where(one_class, tl.maximum(end // COLUMNS - skip, 0), 0)
    contrast_skip = tl.cdiv(contrast_start, COLUMNS)
    contrast_width = tl.where(one_class, tl.maximum(contrast_end // COLUMNS - contrast_skip, 0), 0)
    tiles = tl.cdiv(tl.load(counts), COLUMNS) - width
    contrast_tiles = tl.cdiv(tl.load(counts + 1), COLUMNS) - contrast_width
    return tiles, contrast_tiles, skip, width, contrast_skip, contrast_width


@triton.jit
def _negative_column(t, tiles, skip, width, contrast_skip, contrast_width, padded_n, COLUMNS: tl.constexpr):
    """First column of the t-th tile of ``_negative_tiles``."""
    own = t + tl.where(t >= skip, width, 0)
    other = t - tiles
    other += tl.where(other >= contrast_skip, contrast_width, 0)
    return tl.where(t < tiles, own * COLUMNS, padded_n + other * COLUMNS)


@triton.jit
def _positive_tiles(bounds, counts, padded_n, row0, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Tiles that can hold a positive of this block: first tile and number, for either segment."""
    start, end, contrast_start, contrast_end, _ = _class_range(bounds, counts, padded_n, row0, ROWS)
    first = start // COLUMNS
    contrast_first = contrast_start // COLUMNS
    return first, tl.cdiv(end, COLUMNS) - first, contrast_first, tl.cdiv(contrast_end, COLUMNS) - contrast_first


@triton.jit
def _positive_column(t, first, tiles, contrast_first, padded_n, COLUMNS: tl.constexpr):
    """First column of the t-th tile of ``_positive_tiles``."""
    return tl.where(t < tiles, (first + t) * COLUMNS, padded_n + (contrast_first + t - tiles) * COLUMNS)


@triton.jit
def log_sums(
    unit, stats, table, padded_n, padded_total, splits,
    DIM: tl.constexpr, WIDTH: tl.constexpr, CLASSES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    RUNNING_MAX: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Σ_j exp2(s_aj − top_a) over this program's share of the negatives of a block of anchors (eq. 8)."""
    labels, bounds, counts = _table(table, padded_n, padded_total)
    residual = _residual(unit, padded_total, DIM)
    row0 = tl.program_id(0) * ROWS
    if row0 >= tl.load(counts):
        return
    rows = row0 + tl.arange(0, ROWS)
    row_labels = tl.load(labels + rows)
    tiles, contrast_tiles, skip, width, contrast_skip, contrast_width = _negative_tiles(
        bounds, counts, padded_n, row0, ROWS, COLUMNS
    )
    share = tl.program_id(1)
    begin = (tiles + contrast_tiles) * share // splits
    stop = (tiles + contrast_tiles) * (share + 1) // splits
    total = tl.zeros((ROWS,), tl.float32)
    top = tl.full((ROWS,), -1e30, tl.float32)
    q = _tile(unit, row0, 0, ROWS, WIDTH, DIM)
    q_low = _tile(residual, row0, 0, ROWS, WIDTH, DIM) if PRECISE else q
    for t in range(begin, stop):
        column0 = _negative_column(t, tiles, skip, width, contrast_skip, contrast_width, padded_n, COLUMNS)
        k = _tile(unit, column0, 0, COLUMNS, WIDTH, DIM)
        k_low = _tile(residual, column0, 0, COLUMNS, WIDTH, DIM) if PRECISE else k
        s = _similarities(q, q_low, k, k_low, unit, residual, row0, column0, ROWS, COLUMNS, DIM, WIDTH, PRECISE)
        column_labels = tl.load(labels + column0 + tl.arange(0, COLUMNS))
        negative = (row_labels[:, None] != column_labels[None, :]) & (column_labels >= 0)[None, :]
        if RUNNING_MAX:
            higher = tl.maximum(top, tl.max(tl.where(negative, s, -1e30), axis=1))
            e = tl.where(negative, tl.exp2(s - higher[:, None]), 0.0)
            total = total * tl.exp2(top - higher) + tl.sum(e, axis=1)
            top = higher
        else:
            total += tl.sum(tl.where(negative, tl.exp2(s), 0.0), axis=1)
    sums = _shares(stats, padded_total, CLASSES)
    tl.store(sums + share * padded_n + rows, total)
    if RUNNING_MAX:
        tl.store(sums + (splits + share) * padded_n + rows, top)


@triton.jit
def _combined_log(sums, rows, padded_n, splits, ROWS: tl.constexpr, RUNNING_MAX: tl.constexpr):
    """L_a·log₂e from the shares of ``log_sums``, added in a fixed order; −∞ without a negative."""
    total = tl.zeros((ROWS,), tl.float32)
    top = tl.full((ROWS,), -1e30 if RUNNING_MAX else 0.0, tl.float32)
    for share in range(splits):
        part = tl.load(sums + share * padded_n + rows)
        if RUNNING_MAX:
            part_top = tl.load(sums + (splits + share) * padded_n + rows)
            higher = tl.maximum(top, part_top)
            total = total * tl.exp2(top - higher) + part * tl.exp2(part_top - higher)
            top = higher
        else:
            total += part
    return top + tl.log2(total)


@triton.jit
def _sigmoid2(gap):
    """1/(1 + 2^−gap), never overflowing."""
    small = tl.exp2(-tl.abs(gap))
    return tl.where(gap > 0, 1.0, small) / (1.0 + small)


@triton.jit
def positives(
    unit, stats, table, anchor_count,
    padded_n, padded_total, splits, highest,
    DIM: tl.constexpr, WIDTH: tl.constexpr, CLASSES: tl.constexpr, CLASS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PAIR: tl.constexpr, RUNNING_MAX: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Finish L_a, then sum over the positives: the anchor's loss (eq. 7, 11) and its gradient weights A_a and B_a."""
    labels, bounds, counts = _table(table, padded_n, padded_total)
    residual = _residual(unit, padded_total, DIM)
    probs = _probabilities(stats, padded_total)
    row0 = tl.program_id(0) * ROWS
    anchors_here = tl.load(counts)
    if row0 >= anchors_here:
        return
    rows = row0 + tl.arange(0, ROWS)
    valid = rows < anchors_here
    row_labels = tl.load(labels + rows)
    in_class = tl.load(bounds + padded_n + rows, mask=valid, other=0) - tl.load(bounds + rows, mask=valid, other=0)
    in_class += tl.load(bounds + 3 * padded_n + rows, mask=valid, other=0)
    in_class -= tl.load(bounds + 2 * padded_n + rows, mask=valid, other=0)
    counted = valid & (in_class > 1) & (anchors_here + tl.load(counts + 1) > in_class)
    logs, pulls, pushes, shifted, row_losses, largest = _statistics(stats, padded_total)
    sums = _shares(stats, padded_total, CLASSES)
    # Without a negative any finite L will do, its weight is 0; the highest possible one keeps exp(s − L) finite.
    log = tl.where(counted, _combined_log(sums, rows, padded_n, splits, ROWS, RUNNING_MAX), highest)

    weights = tl.zeros((ROWS,), tl.float32)
    losses = tl.zeros((ROWS,), tl.float32)
    q = _tile(unit, row0, 0, ROWS, WIDTH, DIM)
    q_low = _tile(residual, row0, 0, ROWS, WIDTH, DIM) if PRECISE else q
    first, tiles, contrast_first, contrast_tiles = _positive_tiles(bounds, counts, padded_n, row0, ROWS, COLUMNS)
    for t in range(tiles + contrast_tiles):
        column0 = _positive_column(t, first, tiles, contrast_first, padded_n, COLUMNS)
        columns = column0 + tl.arange(0, COLUMNS)
        k = _tile(unit, column0, 0, COLUMNS, WIDTH, DIM)
        k_low = _tile(residual, column0, 0, COLUMNS, WIDTH, DIM) if PRECISE else k
        s = _similarities(q, q_low, k, k_low, unit, residual, row0, column0, ROWS, COLUMNS, DIM, WIDTH, PRECISE)
        sigma = _uncertainty(probs, row0, column0, ROWS, COLUMNS, CLASSES, CLASS_BLOCK)
        column_labels = tl.load(labels + columns)
        positive = (row_labels[:, None] == column_labels[None, :]) & (rows[:, None] != columns[None, :])
        sigma = tl.where(positive, sigma, 0.0)
        gap = log[:, None] - s
        if PAIR:
            # log₂(1 + 2^gap) from exp2 of a number that is never positive.
            softplus = tl.maximum(gap, 0.0) + tl.log2(1.0 + tl.exp2(-tl.abs(gap)))
            losses += tl.sum(sigma * softplus, axis=1)
            weights += tl.sum(sigma * _sigmoid2(gap), axis=1)
        else:
            losses += tl.sum(sigma * gap, axis=1)
            weights += tl.sum(sigma, axis=1)
    share = 1.0 / (
        tl.maximum(in_class - 1, 1).to(tl.float32)
        * tl.maximum(tl.load(anchor_count) if anchor_count is not None else anchors_here, 1).to(tl.float32)
    )
    share = tl.where(counted, share, 0.0)
    tl.store(logs + rows, log)
    tl.store(pulls + rows, share)
    tl.store(pushes + rows, share * weights)
    if not RUNNING_MAX:
        tl.store(shifted + rows, share * weights * tl.exp2(-log))
    tl.store(row_losses + rows, share * losses * 0.6931471805599453)  # ln 2: from powers of two
    tl.atomic_max(largest, tl.max(tl.abs(share * weights)))  # a maximum does not depend on the order


@triton.jit
def _accumulate(w, k, k_low, acc, PRECISE: tl.constexpr):
    """Return acc + W·f for a tile of weights, rounded to float16 (twice with PRECISE)."""
    rounded = w.to(tl.float16)
    w_low = (w - rounded.to(tl.float32)).to(tl.float16) if PRECISE else rounded
    return _product(rounded, w_low, k, k_low, acc, PRECISE)


@triton.jit
def _negative_weights(
    s, row_b, row_log, stats, padded_total, columns, scale, DETACH: tl.constexpr, RUNNING_MAX: tl.constexpr
):
    """B_a exp(s − L_a) + B_j exp(s − L_j); without a running maximum as (B_a exp(−L_a) + …) exp s."""
    logs, _, pushes, shifted, _, _ = _statistics(stats, padded_total)
    if RUNNING_MAX:
        w = row_b[:, None] * tl.exp2(s - row_log[:, None])
        if not DETACH:
            column_b = tl.load(pushes + columns) * scale
            column_log = tl.load(logs + columns)
            # s ≤ L_j for every negative; the bound is for columns without statistics, where B_j = L_j = 0.
            w += column_b[None, :] * tl.exp2(tl.minimum(s - column_log[None, :], 1.0))
    elif DETACH:
        w = row_b[:, None] * tl.exp2(s)
    else:
        column_b = tl.load(shifted + columns) * scale
        w = (row_b[:, None] + column_b[None, :]) * tl.exp2(s)
    return w


@triton.jit
def _positive_weights(s, row_a, row_log, stats, padded_total, columns, scale, DETACH: tl.constexpr, PAIR: tl.constexpr):
    """A_a + A_j; with PAIR each times the sigmoid(L − s) of its anchor."""
    logs, pulls, _, _, _, _ = _statistics(stats, padded_total)
    column_a = tl.load(pulls + columns) * scale
    if PAIR:
        w = row_a[:, None] * _sigmoid2(row_log[:, None] - s)
        if not DETACH:
            column_log = tl.load(logs + columns)
            w += column_a[None, :] * _sigmoid2(column_log[None, :] - s)
    else:
        w = row_a[:, None] + (column_a * (0.0 if DETACH else 1.0))[None, :]
    return w


@triton.jit
def gradient(
    unit, stats, table, partial,
    padded_n, padded_total, splits,
    DIM: tl.constexpr, WIDTH: tl.constexpr, CLASSES: tl.constexpr, CLASS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PAIR: tl.constexpr, DETACH: tl.constexpr, RUNNING_MAX: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Σ_j W_aj f_j over this program's share of the columns, for a block of anchors and a block of channels."""
    labels, bounds, counts = _table(table, padded_n, padded_total)
    residual = _residual(unit, padded_total, DIM)
    probs = _probabilities(stats, padded_total)
    row0 = tl.program_id(0) * ROWS
    if row0 >= tl.load(counts):
        return
    share = tl.program_id(1)
    d0 = tl.program_id(2) * WIDTH
    rows = row0 + tl.arange(0, ROWS)
    row_labels = tl.load(labels + rows)
    # Weights become float16 for the second product: scaled so that the largest uses its range, undone in finish.
    logs, pulls, pushes, shifted, _, largest = _statistics(stats, padded_total)
    top = tl.load(largest)
    scale = tl.where(top > 0, 16384.0 / tl.where(top > 0, top, 1.0), 0.0)  # two such weights stay inside float16
    row_log = tl.load(logs + rows)
    row_a = tl.load(pulls + rows) * scale
    row_b = tl.load((pushes if RUNNING_MAX else shifted) + rows) * scale
    acc = tl.zeros((ROWS, WIDTH), tl.float32)
    q = _tile(unit, row0, 0, ROWS, WIDTH, DIM)
    q_low = _tile(residual, row0, 0, ROWS, WIDTH, DIM) if PRECISE else q

    tiles, contrast_tiles, skip, width, contrast_skip, contrast_width = _negative_tiles(
        bounds, counts, padded_n, row0, ROWS, COLUMNS
    )
    begin = (tiles + contrast_tiles) * share // splits
    stop = (tiles + contrast_tiles) * (share + 1) // splits
    for t in range(begin, stop):
        column0 = _negative_column(t, tiles, skip, width, contrast_skip, contrast_width, padded_n, COLUMNS)
        columns = column0 + tl.arange(0, COLUMNS)
        k = _tile(unit, column0, d0, COLUMNS, WIDTH, DIM)
        k_low = _tile(residual, column0, d0, COLUMNS, WIDTH, DIM) if PRECISE else k
        s = _similarities(q, q_low, k, k_low, unit, residual, row0, column0, ROWS, COLUMNS, DIM, WIDTH, PRECISE)
        column_labels = tl.load(labels + columns)
        negative = (row_labels[:, None] != column_labels[None, :]) & (column_labels >= 0)[None, :]
        w = _negative_weights(s, row_b, row_log, stats, padded_total, columns, scale, DETACH, RUNNING_MAX)
        w = tl.where(negative, w, 0.0)
        acc = _accumulate(w, k, k_low, acc, PRECISE)

    first, tiles, contrast_first, contrast_tiles = _positive_tiles(bounds, counts, padded_n, row0, ROWS, COLUMNS)
    begin = (tiles + contrast_tiles) * share // splits
    stop = (tiles + contrast_tiles) * (share + 1) // splits
    for t in range(begin, stop):
        column0 = _positive_column(t, first, tiles, contrast_first, padded_n, COLUMNS)
        columns = column0 + tl.arange(0, COLUMNS)
        k = _tile(unit, column0, d0, COLUMNS, WIDTH, DIM)
        k_low = _tile(residual, column0, d0, COLUMNS, WIDTH, DIM) if PRECISE else k
        sigma = _uncertainty(probs, row0, column0, ROWS, COLUMNS, CLASSES, CLASS_BLOCK)
        column_labels = tl.load(labels + columns)
        positive = (row_labels[:, None] == column_labels[None, :]) & (rows[:, None] != columns[None, :])
        s = sigma
        if PAIR:
            s = _similarities(q, q_low, k, k_low, unit, residual, row0, column0, ROWS, COLUMNS, DIM, WIDTH, PRECISE)
        w = _positive_weights(s, row_a, row_log, stats, padded_total, columns, scale, DETACH, PAIR)
        w = tl.where(positive, -sigma * w, 0.0)
        acc = _accumulate(w, k, k_low, acc, PRECISE)
    at = (share * padded_n + row0).to(tl.int64) * DIM + d0
    tl.store(partial + at + tl.arange(0, ROWS)[:, None] * DIM + tl.arange(0, WIDTH)[None, :], acc)


@triton.jit(do_not_specialize=["n"])
def finish(
    anchors, stats, table, partial, upstream, gradient,
    padded_n, padded_total, n, splits, dim, factor, anchor_row, anchor_column,
    PADDED_DIM: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Backward of the normalisation: (g − (g·f) f)/|x|, scattered to the rows' own order; zero outside the set."""
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = position < n
    order = _order(table, padded_n, padded_total)
    source = tl.load(order + position, mask=exists, other=0).to(tl.int64)
    inside = exists & (tl.load(table + position, mask=exists, other=-1) >= 0)
    factor = factor * tl.load(stats + 5 * padded_total) / 16384.0 * tl.load(upstream).to(tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    along = tl.zeros((ROWS,), tl.float32)
    inverse = tl.zeros((ROWS,), tl.float32)
    for phase in tl.static_range(2):
        if phase == 1:
            inverse = tl.where(squares > 0, 1.0 / tl.sqrt(tl.where(squares > 0, squares, 1.0)), 0.0)
        for start in range(0, PADDED_DIM, WIDTH):
            d = start + tl.arange(0, WIDTH)
            mask = inside[:, None] & (d < dim)[None, :]
            x = tl.load(anchors + source[:, None] * anchor_row + d[None, :] * anchor_column, mask=mask, other=0)
            x = x.to(tl.float32)
            g = tl.zeros((ROWS, WIDTH), tl.float32)
            for share in range(splits):
                at = (share * padded_n + position).to(tl.int64)[:, None] * PADDED_DIM + d[None, :]
                g += tl.load(partial + at, mask=mask, other=0.0)
            if phase == 0:
                squares += tl.sum(x * x, axis=1)
                along += tl.sum(x * g, axis=1)
            else:
                # along is g·x: one 1/|x| for each x in (g·f) f.
                g = (g - (along * inverse * inverse)[:, None] * x) * (inverse * factor)[:, None]
                out = gradient + source[:, None] * dim + d[None, :]
                tl.store(out, g.to(gradient.dtype.element_ty), mask=exists[:, None] & (d < dim)[None, :])
