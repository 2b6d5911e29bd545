"""The Triton kernels of local POD: a map is cut into s×s windows, and a program goes through the rows of one.

It holds a row of the window for many channels at once. What it adds up over the row is a strip's mean over the width;
what it adds up from row to row are the means over the height. Sums are in float32 and have a fixed order.
"""

# Triton's language is untyped, its compile-time parameters are upper case and its kernels take many buffers:
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def _window(sizes, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    """The image, and the place of the window in the grid of windows; its columns in the map, and channels (1, …)."""
    channels, _, columns, scale = sizes
    place = tl.program_id(0)
    right, place = place % scale, place // scale
    bottom, image = place % scale, (place // scale).to(tl.int64)
    j = tl.arange(0, COLUMNS)[:, None]
    d = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    return image, bottom, right, right * columns + j, d, (j < columns) & (d < channels)


@triton.jit
def _place(strides, image, channel, row, column):
    """Where the numbers of a map are; ``image`` is 64 bits wide, what follows stays within one image."""
    return image * strides[0] + channel * strides[1] + row * strides[2] + column * strides[3]


@triton.jit
def gap_strips(
    student, teacher, across, down, student_strides, teacher_strides, across_strides, down_strides, sizes,
    COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Means of f² − t² over the rows of a window, and over its columns."""
    image, bottom, right, column, channel, inside = _window(sizes, COLUMNS, CHANNELS)
    channels, rows, columns, _ = sizes
    total = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    for i in range(rows):
        row = bottom * rows + i
        f = tl.load(student + _place(student_strides, image, channel, row, column), mask=inside, other=0)
        t = tl.load(teacher + _place(teacher_strides, image, channel, row, column), mask=inside, other=0)
        f, t = f.to(tl.float32), t.to(tl.float32)
        gap = (f - t) * (f + t)  # 0 where they agree: of f·f − t·t a GPU rounds one product and not the other
        total += gap
        mean = (tl.sum(gap, axis=0) / columns)[None, :]
        tl.store(across + _place(across_strides, image, channel, row, right), mean, mask=channel < channels)
    tl.store(down + _place(down_strides, image, channel, bottom, column), total / rows, mask=inside)


@triton.jit
def strips_gradient(
    student, gradient, across, down, student_strides, gradient_strides, across_strides, down_strides, sizes,
    COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """2 f times what its row and its column want of f² − t²."""
    image, bottom, right, column, channel, inside = _window(sizes, COLUMNS, CHANNELS)
    channels, rows, columns, _ = sizes
    wanted = tl.load(down + _place(down_strides, image, channel, bottom, column), mask=inside, other=0) / rows
    for i in range(rows):
        row = bottom * rows + i
        mean = tl.load(
            across + _place(across_strides, image, channel, row, right), mask=channel < channels, other=0
        )  # fmt: skip
        f = tl.load(student + _place(student_strides, image, channel, row, column), mask=inside, other=0)
        found = 2 * f.to(tl.float32) * (wanted + mean / columns)
        at = gradient + _place(gradient_strides, image, channel, row, column)
        tl.store(at, found.to(gradient.dtype.element_ty), mask=inside)
