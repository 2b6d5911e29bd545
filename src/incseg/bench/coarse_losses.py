"""``incseg bench losses``: losses at the size of the image by way of that size and by way around it, in one run."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from incseg import losses
from incseg.bench.measure import device_to_measure, hardware, median_milliseconds, peak_extra_bytes
from incseg.console import Table
from incseg.losses import CoarseLogits
from incseg.losses.coarse import is_fused
from incseg.protocol import IGNORE
from incseg.upsampling import Scores, interpolate

BATCH, CLASSES, OLD = 24, 21, 16
GPU_SIZES = ((32, 512), (16, 256))  # of the grid and of the image
CPU_SIZES = ((16, 256), (8, 64))


class Inputs(NamedTuple):
    """A batch."""

    student: CoarseLogits
    teacher: CoarseLogits
    labels: Tensor


Way = Callable[[CoarseLogits], Scores]

LOSSES: dict[str, Callable[[Inputs, Way], Tensor]] = {
    "cross-entropy": lambda given, way: losses.cross_entropy(way(given.student), given.labels),
    "unbiased cross-entropy": lambda given, way: losses.unbiased_cross_entropy(
        way(given.student), given.labels, old_classes=OLD
    ),
    "unbiased distillation": lambda given, way: losses.unbiased_distillation(way(given.student), way(given.teacher)),
    "entropy of the teacher": lambda given, way: losses.prediction_with_entropy(way(given.teacher))[1],
}


def benchmark_losses(device: str = "auto") -> Table:
    """Time and memory of forward + backward of three losses, and of the teacher's entropy, by every implementation.

    Args:
        device: ``cuda``, ``cpu`` or ``auto``.
    """
    place = device_to_measure(device)
    rows = []
    for grid, size in GPU_SIZES if place.type == "cuda" else CPU_SIZES:
        given = random_inputs(grid, size, place)
        for name, loss in LOSSES.items():
            slowest = None
            for by, way in ways(given).items():
                step = partial(_step, loss, given, way)
                extra = peak_extra_bytes(step, place)
                time = median_milliseconds(step, place)
                slowest = slowest or time
                memory = "–" if extra is None else f"{extra / 2**20:.1f}"
                rows.append([name, f"{grid}² → {size}²", by, f"{time:.3f}", f"{slowest / time:.1f}", memory])
    headers = ["loss", "size", "by", "ms", "times as fast", "extra memory, MiB"]
    note = f"{BATCH} images, {CLASSES} classes of which {OLD} are old, float32. Medians of forward and backward."
    return Table(f"Losses from coarse logits, {hardware(place).name}", headers, rows, note)


def ways(given: Inputs) -> dict[str, Way]:
    """How coarse logits are given to a loss."""
    found: dict[str, Way] = {"interpolation": interpolate, "matrix products": CoarseLogits.full_size}
    if is_fused(given.student):
        found["kernels"] = lambda scores: scores
    return found


def random_inputs(grid: int, size: int, device: torch.device) -> Inputs:
    """Logits as a network gives them, and labels of which a tenth is ignored."""
    rng = torch.Generator(device).manual_seed(size)
    student = 3 * torch.randn(BATCH, CLASSES, grid, grid, device=device, generator=rng)
    teacher = 3 * torch.randn(BATCH, OLD, grid, grid, device=device, generator=rng)
    labels = torch.randint(0, CLASSES, (BATCH, size, size), device=device, generator=rng)
    ignored = torch.rand(labels.shape, device=device, generator=rng) < 0.1
    student_scores = CoarseLogits(student.requires_grad_(), (size, size))
    return Inputs(student_scores, CoarseLogits(teacher, (size, size)), labels.masked_fill(ignored, IGNORE))


def _step(loss: Callable[[Inputs, Way], Tensor], given: Inputs, way: Way) -> None:
    found = loss(given, way)
    if found.requires_grad:
        torch.autograd.grad(found, given.student.logits)
