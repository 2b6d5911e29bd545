"""The launches of the kernels in ``strip_kernels``, in one autograd function."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from incseg.losses.triton_support import builds, runs_triton

ELEMENTS = 1024  # of a map that a program, one warp, holds at once; a sum over them then needs no other warp


def is_fusible(student: Tensor, teacher: Tensor) -> bool:
    """Whether the kernels can read these maps."""
    if torch.float64 in (student.dtype, teacher.dtype) or student.shape != teacher.shape or student.numel() == 0:
        return False
    return runs_triton(student) and runs_triton(teacher) and _compiles(student.device, student.dtype, teacher.dtype)


def gap_strips(student: Tensor, teacher: Tensor, scale: int) -> tuple[Tensor, Tensor]:
    """Means of f² − t² over the width, (B, D, h, s), and over the height, (B, D, s, w), of s×s windows, in float32.

    Args:
        student: f, (B, D, h, w) float32 or shorter, in any order of memory.
        teacher: t, the same shape; no gradient flows into it.
        scale: s, a divisor of h and w.
    """
    strips: tuple[Tensor, Tensor] = _GapStrips.apply(student, teacher, scale)
    return strips


class _GapStrips(torch.autograd.Function):
    """Forward reads both maps once; backward reads the student's and writes its gradient."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        batch, channels, height, width = student.shape
        # Channels lie next to each other: programs write many of them at once.
        across = torch.empty(batch, height, scale, channels, device=student.device).movedim(3, 1)
        down = torch.empty(batch, scale, width, channels, device=student.device).movedim(3, 1)
        grid, sizes, tile = _launch(student, scale)
        _kernels().gap_strips[grid](
            student, teacher, across, down,
            student.stride(), teacher.stride(), across.stride(), down.stride(), sizes, **tile,
        )  # fmt: skip
        ctx.save_for_backward(student)
        ctx.scale = scale
        return across, down

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, across: Tensor, down: Tensor) -> tuple[Tensor, None, None]:
        (student,) = ctx.saved_tensors
        gradient = torch.empty_like(student)
        grid, sizes, tile = _launch(student, ctx.scale)
        _kernels().strips_gradient[grid](
            student, gradient, across, down,
            student.stride(), gradient.stride(), across.stride(), down.stride(), sizes, **tile,
        )  # fmt: skip
        return gradient, None, None


def _launch(maps: Tensor, scale: int) -> tuple[tuple[int, int], tuple[int, int, int, int], dict[str, int]]:
    """The grid, the sizes that both kernels take, and the shape of a program's tile."""
    batch, channels, height, width = maps.shape
    rows, columns = height // scale, width // scale
    padded = 1 << (columns - 1).bit_length()
    at_once = min(max(ELEMENTS // padded, 1), 1 << (channels - 1).bit_length())
    grid = (batch * scale * scale, -(-channels // at_once))
    return grid, (channels, rows, columns, scale), {"COLUMNS": padded, "CHANNELS": at_once, "num_warps": 1}


@cache
def _compiles(device: torch.device, dtype: torch.dtype, teacher_dtype: torch.dtype) -> bool:
    """Tried with sizes above 1, for which Triton builds other code than for 1, and in the types at hand."""

    @torch.enable_grad()
    def both_kernels() -> None:
        example = torch.zeros(1, 2, 4, 4, device=device, dtype=dtype, requires_grad=True)
        across, down = gap_strips(example, torch.zeros_like(example, dtype=teacher_dtype), 2)
        (across.sum() + down.sum()).backward()

    return builds(both_kernels, "local POD is computed without kernels")


@cache
def _kernels() -> Any:
    from incseg.losses.pod import strip_kernels  # noqa: PLC0415 - Triton is only imported when it is used

    return strip_kernels
