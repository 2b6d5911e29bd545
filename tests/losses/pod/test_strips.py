"""Local POD by kernels, against the eager one in float64.

As for the other kernels: on a GPU where there is one, else in a process of its own through Triton's interpreter.
"""

import pytest
import torch
from torch import Tensor

from interpreter import DEVICE, INTERPRETED, needs_gpu, only_elsewhere, passes_in_the_interpreter, runs_kernels

pytest.importorskip("triton", reason="Triton is not installed")

from incseg.losses import pod_distance
from incseg.losses.pod import pooling, strips

SHAPES = [
    (1, 1, 1, 1),  # no room for two windows
    (2, 3, 2, 6),
    (1, 70, 4, 20),  # windows of 5 columns; more channels than a tile has, and not all of the last
]


def maps(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, *, channels_last: bool = False
) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    both = [torch.randn(shape, generator=rng).to(DEVICE, dtype) for _ in range(2)]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    student, teacher = (each.to(memory_format=layout) for each in both)
    return student, teacher


def run(student: Tensor, teacher: Tensor, *, by_kernels: bool) -> tuple[Tensor, Tensor]:
    """The distance, and the gradient of −2.5 times it."""
    student = student.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    loss = pod_distance(student, teacher, fused=by_kernels)
    (gradient,) = torch.autograd.grad(-2.5 * loss, student)
    return loss.detach(), gradient


def error(got: Tensor, true: Tensor) -> float:
    return float(torch.linalg.vector_norm(got.double() - true) / torch.linalg.vector_norm(true).clamp_min(1e-6))


def assert_as_accurate_as_eager(student: Tensor, teacher: Tensor) -> None:
    assert strips.is_fusible(student, teacher)
    true = run(student.double(), teacher.double(), by_kernels=False)
    eager, kernel = (run(student, teacher, by_kernels=by_kernels) for by_kernels in (False, True))
    assert kernel[0].dtype == torch.float32
    assert kernel[1].dtype == student.dtype
    assert kernel[1].stride() == student.stride()
    # The interpreter cuts numbers off to bfloat16, where a GPU rounds them.
    cut = 2**-8 if INTERPRETED and student.dtype == torch.bfloat16 else 0
    for got, by_eager, exact in zip(kernel, eager, true, strict=True):
        assert error(got, exact) <= 2 * error(by_eager, exact) + 1e-6 + cut


@runs_kernels
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(shape: tuple[int, ...], channels_last: bool) -> None:
    assert_as_accurate_as_eager(*maps(shape, channels_last=channels_last))


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_a_teacher_in_single(dtype: torch.dtype) -> None:
    student, teacher = maps((1, 3, 4, 4), dtype)
    assert_as_accurate_as_eager(student, teacher)
    assert_as_accurate_as_eager(student, teacher.float())


@runs_kernels
def test_maps_that_are_parts_of_others() -> None:
    student, teacher = (each[1:, :, ::2] for each in maps((2, 2, 8, 4)))
    assert_as_accurate_as_eager(student.contiguous(), teacher)
    by_parts = run(student, teacher, by_kernels=True)
    for got, wanted in zip(by_parts, run(student.contiguous(), teacher, by_kernels=True), strict=True):
        torch.testing.assert_close(got, wanted)


@runs_kernels
def test_equal_maps_have_no_distance_and_no_gradient() -> None:
    student, _ = maps((2, 3, 4, 4))
    loss, gradient = run(student, student, by_kernels=True)
    assert loss == 0
    assert gradient.abs().max() == 0


@runs_kernels
def test_the_teacher_gets_no_gradient() -> None:
    student, teacher = maps((1, 2, 4, 4))
    student.requires_grad_()
    teacher.requires_grad_()
    pod_distance(student, teacher, fused=True).backward()
    assert student.grad is not None
    assert teacher.grad is None


def test_what_kernels_cannot_take_is_computed_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("no kernel for this")

    monkeypatch.setattr(pooling, "gap_strips", refused)
    for shape, dtype in (((2, 3, 9, 6), torch.float32), ((0, 3, 8, 8), torch.float32), ((2, 3, 8, 8), torch.float64)):
        student, teacher = maps(shape, dtype)
        by_kernels, plain = (pod_distance(student, teacher, fused=fused) for fused in (True, False))
        assert torch.equal(by_kernels, plain)


def test_a_compiler_that_fails_is_told_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler\nand more")

    student, teacher = maps((2, 3, 8, 8))
    monkeypatch.setattr(strips, "runs_triton", lambda _: True)
    monkeypatch.setattr(strips, "_kernels", fails)
    strips._compiles.cache_clear()
    with pytest.warns(UserWarning, match=r"local POD is computed without kernels.*Failed to find C compiler\)"):
        assert not strips.is_fusible(student, teacher)
    assert torch.equal(pod_distance(student, teacher, fused=True), pod_distance(student, teacher))
    strips._compiles.cache_clear()


@needs_gpu
@pytest.mark.parametrize("shape", [(4, 256, 128, 128), (4, 2048, 32, 32)])
def test_no_synchronisation_and_equal_bits(shape: tuple[int, ...]) -> None:
    student, teacher = maps(shape, torch.bfloat16, channels_last=True)
    first = run(student, teacher, by_kernels=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = run(student, teacher, by_kernels=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@only_elsewhere
def test_in_the_interpreter() -> None:
    passes_in_the_interpreter(__file__)
