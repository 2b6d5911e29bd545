"""Losses from coarse logits by the kernels in ``fused_kernels``: their launches, in one autograd function."""

from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from incseg.protocol import IGNORE
from incseg.upsampling import CoarseLogits

Measure = Literal["probability", "entropy", "released"]

MOST_COLUMNS = 16  # of a cell at once
MOST_ELEMENTS = 4096  # logits of pixels that a program works on at once
ELEMENTS_PER_WARP = 512  # of these, as many as 32 threads hold without running out of registers


class Target(NamedTuple):
    """What the pixels are compared with: labels or a teacher, and which classes count as one."""

    labels: Tensor | None = None
    """(B, H, W) integer; with a teacher (B, H, W) bool: where its background stands for background alone."""
    teacher: CoarseLogits | None = None
    classes: int = 0
    """How many of the student's classes, from the first on, take part."""
    group: range | None = None
    """Classes that count as one together with background."""
    grouped_labels: int = 0
    """Labels below this one mean the group."""
    weights: Tensor | None = None
    """(C,) float32 per label."""


def label_losses(
    scores: CoarseLogits,
    labels: Tensor,
    *,
    old_classes: int = 1,
    grouped_labels: int = 0,
    weights: Tensor | None = None,
) -> Tensor:
    """(B,) cross-entropy with labels, summed over the pixels of an image.

    Args:
        scores: of the student.
        labels: (B, H, W) integer in 0…C−1, or 255 for ignored.
        old_classes: K.
        grouped_labels: labels below this one mean any of the first K classes.
        weights: (C,) by which pixels of a class count, or None: 1.
    """
    group = range(1, old_classes) if old_classes > 1 and grouped_labels else None
    grouped_labels = 0 if group is None else grouped_labels  # background alone is a class like any other
    return _losses(scores, Target(labels, None, scores.shape[1], group, grouped_labels, weights))


def teacher_losses(
    scores: CoarseLogits, teacher: CoarseLogits, *, merge_new: bool, labels: Tensor | None = None
) -> Tensor:
    """(B,) cross-entropy with the teacher's K probabilities, summed over the pixels of an image.

    Args:
        scores: of the student.
        teacher: its classes are the first K of the student's; no gradient flows into it.
        merge_new: the teacher's background stands for background and all new classes; else these do not take part.
        labels: (B, H, W) integer, with ``merge_new``: where they are 0 it stands for background alone, and pixels of a
            new class cost nothing.
    """
    classes, old = scores.logits.shape[1], teacher.logits.shape[1]
    group = range(old, classes) if merge_new and classes > old else None
    known = None if group is None else labels
    return _losses(scores, Target(known, teacher, classes if merge_new else old, group))


def read_pixels(scores: CoarseLogits, measure: Measure) -> tuple[Tensor, Tensor]:
    """(B, H, W) most likely classes, int64, and float32 numbers: see the kernel of this name."""
    logits, (height, width) = scores.logits.detach(), scores.size
    predicted = torch.empty(len(logits), height, width, dtype=torch.int64, device=logits.device)
    values = torch.empty(predicted.shape, device=logits.device)
    tiling = Tiling.of(scores, logits.shape[1])
    _kernels().read_pixels[(tiling.programs,)](
        logits, predicted, values, logits.shape[1], logits.stride(), *map(tuple, scores.axes), tiling.parts,
        **tiling.launch(), MEASURE=get_args(Measure).index(measure),
    )  # fmt: skip
    return predicted, values


def _losses(scores: CoarseLogits, target: Target) -> Tensor:
    _check(scores, target)  # kernels would read what lies beside a tensor that is too small
    losses: Tensor = _PixelLosses.apply(scores.logits, scores, target)
    return losses


def _check(scores: CoarseLogits, target: Target) -> None:
    pixels, teacher = (len(scores.logits), *scores.size), target.teacher
    if target.labels is not None and target.labels.shape != pixels:
        raise ValueError(f"labels must be (B, H, W) = {pixels}: got {tuple(target.labels.shape)}")
    if teacher is not None and (teacher.logits[:, 0].shape, *teacher[1:]) != (scores.logits[:, 0].shape, *scores[1:]):
        raise ValueError(
            f"the teacher's logits must be on the student's grid, {tuple(scores.logits.shape)} for {scores.size}: got "
            f"{tuple(teacher.logits.shape)} for {teacher.size}"
        )


class _PixelLosses(torch.autograd.Function):
    """Forward also finds the gradient, cell by cell: no pixel is looked at twice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, scores: CoarseLogits, target: Target) -> Tensor:
        tiling = Tiling.of(scores, target.classes)
        losses, corners = _launch(scores, target, tiling, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(logits, corners)
        ctx.classes, ctx.parts = target.classes, tiling.parts
        return losses.view(len(logits), -1).sum(dim=1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        logits, corners = ctx.saved_tensors
        batch, all_classes, height, width = logits.shape
        gradient, nodes, padded = torch.empty_like(logits), batch * height * width, _padded(all_classes)
        at_once = max(1, ELEMENTS_PER_WARP // padded)
        _kernels().node_gradients[(-(-nodes // at_once),)](
            corners, upstream, gradient,
            nodes, height, width, ctx.parts, ctx.classes, all_classes, upstream.stride(0), gradient.stride(),
            CLASSES=padded, NODES=at_once,
        )  # fmt: skip
        return gradient, None, None


def _launch(scores: CoarseLogits, target: Target, tiling: "Tiling", *, gradient: bool) -> tuple[Tensor, Tensor]:
    """Of every program the sum of its losses, and the gradients of four nodes."""
    logits = scores.logits
    teacher = logits if target.teacher is None else target.teacher.logits.detach()
    losses = torch.empty(tiling.programs, device=logits.device)
    corners = torch.empty(tiling.programs if gradient else 0, 4, target.classes, device=logits.device)
    group = target.group or range(0)
    # Buffers that a variant of the kernel does not read are given as any other.
    _kernels().pixel_losses[(tiling.programs,)](
        logits, teacher, logits if target.labels is None else target.labels.contiguous(),
        logits if target.weights is None else target.weights, losses, corners,
        target.classes, teacher.shape[1], group.start, group.stop, target.grouped_labels,
        logits.stride(), teacher.stride(), *map(tuple, scores.axes), tiling.parts,
        **tiling.launch(), IGNORE=IGNORE,
        TEACHER=target.teacher is not None, GROUP=target.group is not None, LABELS=target.labels is not None,
        WEIGHTS=target.weights is not None, GRADIENT=gradient,
    )  # fmt: skip
    return losses, corners


class Tiling(NamedTuple):
    """How the image is shared out among programs."""

    programs: int
    parts: int  # of a cell
    classes: int  # as the kernels see them: a power of two
    columns: int

    @classmethod
    def of(cls, scores: CoarseLogits, classes: int) -> "Tiling":
        """All classes and up to 16 columns of a cell at once."""
        (rows, columns), classes = scores.axes, _padded(classes)
        widest = -(-columns.d // columns.a)  # a cell has no more columns than this
        width = max(1, min(_padded(widest), MOST_COLUMNS, MOST_ELEMENTS // classes))
        parts = -(-widest // width)
        programs = len(scores.logits) * (rows.lines + 1) * (columns.lines + 1) * parts
        return cls(programs, parts, classes, width)

    def launch(self) -> dict[str, int]:
        """Keyword arguments of a kernel launch."""
        warps = max(1, self.classes * self.columns // ELEMENTS_PER_WARP)
        return {"CLASSES": self.classes, "COLUMNS": self.columns, "num_warps": warps}


@cache
def _kernels() -> Any:
    from incseg.losses.coarse import fused_kernels  # noqa: PLC0415 - Triton is only imported when it is used

    return fused_kernels


def _padded(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()
