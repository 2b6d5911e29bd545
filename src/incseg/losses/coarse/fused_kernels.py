"""The Triton kernels of losses from coarse logits: the image is walked cell by cell and never stored.

A *cell* is the pixels between four neighbouring nodes of the coarse grid; all of them are interpolated from the same
four vectors of logits. Beyond the first and last lines of the grid lie cells between a node and itself, so that a grid
of h×w nodes has (h + 1)×(w + 1) cells. Wide cells are cut into parts. One program takes one part of a cell, goes
through its rows, and has there for every pixel p

    loss_p = log Σ_c exp z_c − Σ_c q_c z_c − r log Σ_{c∈G} exp z_c,        Σ_c q_c + r = 1

with z the student's logits and a target that gives the share q_c to each class, and r to a group G of classes:

    cross-entropy            q is 1 at the label
    unbiased cross-entropy   the same for new classes; r = 1 at background, G all old classes
    output distillation      q the teacher's probabilities
    unbiased distillation    the same for old classes; r that of background, G background and all new classes

The gradient ``softmax(z) − q − r softmax_G(z)`` goes back to the four nodes while it is at hand, so that the backward
pass has only to add up what the four cells around a node found for it. No sum depends on the order in which programs
run: equal inputs give equal bits. Logits are kept in units of ln 2, so that exp is one instruction.
"""

# Triton's language is untyped, its compile-time parameters are upper case and its kernels take many buffers:
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803

import triton
import triton.language as tl

# Constants are local to the functions, because Triton compares the global ones at every launch, on the host.


@triton.jit
def _cell(rows, columns, parts):
    """Which part of which cell of which image this program takes."""
    place = tl.program_id(0)
    part, place = place % parts, place // parts
    j, place = place % (columns[0] + 1), place // (columns[0] + 1)
    return (place // (rows[0] + 1)).to(tl.int64), place % (rows[0] + 1), j, part


@triton.jit
def _start(i, axis):
    """The first line of the image in cell ``i``, which lies between the nodes i − 1 and i of the grid."""
    lines, size, a, b, d = axis
    # Division rounds towards zero, so that what is divided may not be negative.
    start = tl.minimum((tl.maximum((i - 1) * d - b, 0) + a - 1) // a, size)
    return tl.where(i > lines, size, start)


@triton.jit
def _share(y, i, axis):
    """How far lines of the image in cell ``i`` are from its first node to its second, from 0 to 1.

    Where both are the same node, all of it belongs to the one that has a cell on its other side.
    """
    lines, _, a, b, d = axis
    share = (y * a + b - (i - 1) * d).to(tl.float32) * (1.0 / d)
    return tl.where(i == 0, 1.0, tl.where(i == lines, 0.0, share))


@triton.jit
def _node(logits, image, i, j, strides, classes, CLASSES: tl.constexpr):
    """(CLASSES,) logits of a node; a class that does not exist has one that no sum of exponentials notices."""
    LOG2E: tl.constexpr = 1.4426950408889634  # noqa: N806
    c = tl.arange(0, CLASSES)
    at = image * strides[0] + c.to(tl.int64) * strides[1] + i.to(tl.int64) * strides[2] + j.to(tl.int64) * strides[3]
    found = tl.load(logits + at, mask=c < classes, other=0).to(tl.float32) * LOG2E
    return tl.where(c < classes, found, -1e30)


@triton.jit
def _edges(logits, image, i, j, across, strides, classes, rows, columns, CLASSES: tl.constexpr):
    """(CLASSES, COLUMNS) logits on a cell's first line, and how much they change from there to its last."""
    above, below = tl.maximum(i - 1, 0), tl.minimum(i, rows[0] - 1)
    before, behind = tl.maximum(j - 1, 0), tl.minimum(j, columns[0] - 1)
    left = _node(logits, image, above, before, strides, classes, CLASSES)
    right = _node(logits, image, above, behind, strides, classes, CLASSES)
    first = left[:, None] + across[None, :] * (right - left)[:, None]
    left = _node(logits, image, below, before, strides, classes, CLASSES)
    right = _node(logits, image, below, behind, strides, classes, CLASSES)
    return first, left[:, None] + across[None, :] * (right - left)[:, None] - first


@triton.jit
def _exponentials(z):
    """z less its maximum over the classes, 2 to the power of that, and the sum of those powers."""
    shifted = z - tl.max(z, axis=0)[None, :]
    e = tl.exp2(shifted)
    return shifted, e, tl.sum(e, axis=0)


@triton.jit
def _label_target(labels, weights, at, inside, c, classes, grouped_labels, IGNORE: tl.constexpr, WEIGHTS: tl.constexpr):
    """q, r and the weight of a row of pixels with labels; a label that is no class makes the loss not a number."""
    label = tl.load(labels + at, mask=inside, other=IGNORE).to(tl.int32)
    exists = (label >= 0) & (label < classes)
    weight = tl.where(exists, 1.0, float("nan"))
    if WEIGHTS:
        weight *= tl.load(weights + label, mask=exists, other=0.0)
    grouped = label < grouped_labels
    q = tl.where(c[:, None] == tl.where(grouped, -1, label)[None, :], 1.0, 0.0)
    return q, tl.where(grouped, 1.0, 0.0), tl.where(label != IGNORE, weight, 0.0)


@triton.jit
def _teacher_target(z, labels, at, inside, c, old, IGNORE: tl.constexpr, GROUP: tl.constexpr, LABELS: tl.constexpr):
    """q, r and the weight of a row of pixels of which a teacher has logits for the first ``old`` classes."""
    _, q, sum_q = _exponentials(z)
    q *= (1.0 / sum_q)[None, :]
    merged = inside & GROUP
    weight = tl.where(inside, 1.0, 0.0)
    if LABELS:
        label = tl.load(labels + at, mask=inside, other=IGNORE).to(tl.int32)
        merged &= label != 0
        weight = tl.where((label >= old) & (label != IGNORE), 0.0, weight)
    is_merged = (c == 0)[:, None] & merged[None, :]
    r = tl.sum(tl.where(is_merged, q, 0.0), axis=0)
    return tl.where(is_merged, 0.0, q), r, weight


@triton.jit
def _row(z, q, r, outside, GROUP: tl.constexpr):
    """Loss, in units of ln 2, and gradient of a row of pixels."""
    shifted, e, sum_e = _exponentials(z)
    loss = tl.log2(sum_e) - tl.sum(q * shifted, axis=0)
    gradient = e * (1.0 / sum_e)[None, :] - q
    if GROUP:
        shifted += outside[:, None]
        highest = tl.max(shifted, axis=0)
        e = tl.exp2(shifted - highest[None, :])
        sum_e = tl.sum(e, axis=0)
        loss -= r * (highest + tl.log2(sum_e))
        gradient -= e * (r / sum_e)[None, :]
    return loss, gradient


# Not specialised: numbers that change from step to step, for each of which Triton would else compile anew.
@triton.jit(do_not_specialize=["classes", "teacher_classes", "group_start", "group_end", "grouped_labels"])
def pixel_losses(
    logits, teacher, labels, weights, losses, corners,
    classes, teacher_classes, group_start, group_end, grouped_labels,
    strides, teacher_strides, rows, columns, parts,
    CLASSES: tl.constexpr, COLUMNS: tl.constexpr, IGNORE: tl.constexpr,
    TEACHER: tl.constexpr, GROUP: tl.constexpr, LABELS: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """One part of a cell: the sum of its pixels' losses, and what they add to the gradient of the cell's four nodes.

    With a teacher, its background stands for itself and not for G where the label is 0, and pixels labelled with a
    class that it does not know cost nothing.
    """
    LN2: tl.constexpr = 0.6931471805599453  # noqa: N806
    image, i, j, part = _cell(rows, columns, parts)
    c = tl.arange(0, CLASSES)
    # Added to logits, it takes those outside the group out of its sum.
    outside = tl.where((c == 0) | ((c >= group_start) & (c < group_end)), 0.0, -1e30)
    x = _start(j, columns) + part * COLUMNS + tl.arange(0, COLUMNS)
    inside = x < _start(j + 1, columns)
    across = _share(x, j, columns)
    first, change = _edges(logits, image, i, j, across, strides, classes, rows, columns, CLASSES)
    if TEACHER:
        teacher_first, teacher_change = _edges(
            teacher, image, i, j, across, teacher_strides, teacher_classes, rows, columns, CLASSES
        )
    upper = tl.zeros((CLASSES, COLUMNS), tl.float32)
    lower = tl.zeros((CLASSES, COLUMNS), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    for y in range(_start(i, rows), _start(i + 1, rows)):
        down = _share(y, i, rows)
        at = (image * rows[1] + y) * columns[1] + x
        if TEACHER:
            z = teacher_first + down * teacher_change
            q, r, weight = _teacher_target(z, labels, at, inside, c, teacher_classes, IGNORE, GROUP, LABELS)
        else:
            q, r, weight = _label_target(labels, weights, at, inside, c, classes, grouped_labels, IGNORE, WEIGHTS)
        loss, gradient = _row(first + down * change, q, r, outside, GROUP)
        total += weight * loss
        upper += (weight * (1 - down))[None, :] * gradient
        lower += (weight * down)[None, :] * gradient
    place = tl.program_id(0)
    tl.store(losses + place, tl.sum(total) * LN2)
    if GRADIENT:
        out = corners + place.to(tl.int64) * 4 * classes + c
        tl.store(out, tl.sum((1 - across)[None, :] * upper, axis=1), mask=c < classes)
        tl.store(out + classes, tl.sum(across[None, :] * upper, axis=1), mask=c < classes)
        tl.store(out + 2 * classes, tl.sum((1 - across)[None, :] * lower, axis=1), mask=c < classes)
        tl.store(out + 3 * classes, tl.sum(across[None, :] * lower, axis=1), mask=c < classes)


@triton.jit(do_not_specialize=["classes", "all_classes"])
def node_gradients(
    corners, upstream, gradient, nodes, height, width, parts, classes, all_classes, upstream_stride, strides,
    CLASSES: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    """Add up what the four cells around each node found for it, times the upstream gradient of its image."""
    node = tl.program_id(0).to(tl.int64) * NODES + tl.arange(0, NODES)
    c = tl.arange(0, CLASSES)
    j, i, image = node % width, node // width % height, node // width // height
    exists = node < nodes
    known = exists[:, None] & (c < classes)[None, :]
    found = tl.zeros((NODES, CLASSES), tl.float32)
    for part in range(4 * parts):
        corner = part // parts  # of the cells before and above, before and below, …: their last corner, …, their first
        cell = (image * (height + 1) + i + corner // 2) * (width + 1) + j + corner % 2
        at = ((cell * parts + part % parts) * 4 + 3 - corner) * classes
        found += tl.load(corners + at[:, None] + c[None, :], mask=known, other=0.0)
    found *= tl.load(upstream + image * upstream_stride, mask=exists, other=0.0).to(tl.float32)[:, None]
    at = (image * strides[0] + i * strides[2] + j * strides[3])[:, None] + c.to(tl.int64)[None, :] * strides[1]
    tl.store(gradient + at, found.to(gradient.dtype.element_ty), mask=exists[:, None] & (c < all_classes)[None, :])


@triton.jit(do_not_specialize=["classes"])
def read_pixels(
    logits, predicted, values, classes, strides, rows, columns, parts,
    CLASSES: tl.constexpr, COLUMNS: tl.constexpr, MEASURE: tl.constexpr,
):  # fmt: skip
    """One part of a cell: the most likely class of every pixel and a number that says how likely it is.

    That is its probability (0), the entropy −Σ p ln p (1), or −Σ p ln(p + 1e-8) as in PLOP's released code (2).
    """
    LN2: tl.constexpr = 0.6931471805599453  # noqa: N806
    image, i, j, part = _cell(rows, columns, parts)
    x = _start(j, columns) + part * COLUMNS + tl.arange(0, COLUMNS)
    inside = x < _start(j + 1, columns)
    across = _share(x, j, columns)
    first, change = _edges(logits, image, i, j, across, strides, classes, rows, columns, CLASSES)
    for y in range(_start(i, rows), _start(i + 1, rows)):
        z = first + _share(y, i, rows) * change
        shifted, e, sum_e = _exponentials(z)
        if MEASURE == 0:
            value = 1.0 / sum_e
        elif MEASURE == 1:
            value = LN2 * (tl.log2(sum_e) - tl.sum(e * shifted, axis=0) / sum_e)
        else:
            p = e * (1.0 / sum_e)[None, :]
            value = -LN2 * tl.sum(p * tl.log2(p + 1e-8), axis=0)
        at = (image * rows[1] + y) * columns[1] + x
        tl.store(predicted + at, tl.argmax(z, axis=0).to(tl.int64), mask=inside)
        tl.store(values + at, value, mask=inside)
