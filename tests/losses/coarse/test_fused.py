"""Losses from coarse logits by kernels, against eager ones at the size of the image in float64.

As for contrastive distillation: on a GPU where there is one, else in a process of its own through Triton's interpreter.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from interpreter import DEVICE, INTERPRETED, needs_gpu, only_elsewhere, passes_in_the_interpreter, runs_kernels

pytest.importorskip("triton", reason="Triton is not installed")

from incseg import losses, methods
from incseg.batch import Batch, Outputs
from incseg.losses import CoarseLogits
from incseg.losses.coarse import choice, is_fused
from incseg.protocol import steps
from incseg.upsampling import Scores, interpolate


@pytest.fixture(autouse=True)
def at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels also where PyTorch would be as good."""
    monkeypatch.setattr(choice, "LEAST_ENLARGEMENT", 0)


class Case:
    """Student and teacher, and labels, among which are ignored ones."""

    def __init__(
        self,
        classes: int,
        old: int,
        grid: tuple[int, int],
        size: tuple[int, int],
        *,
        align_corners: bool = False,
        dtype: torch.dtype = torch.float32,
        batch: int = 1,
        scale: float = 3.0,
    ):
        rng = torch.Generator().manual_seed(0)
        self.student = (scale * torch.randn(batch, classes, *grid, generator=rng)).to(DEVICE, dtype)
        self.teacher = (scale * torch.randn(batch, old, *grid, generator=rng)).to(DEVICE, dtype)
        self.size, self.align_corners, self.old = size, align_corners, old
        choices = torch.tensor([c for c in range(classes) if c != 255] + [255])
        self.labels = choices[torch.randint(0, len(choices), (batch, *size), generator=rng)].to(DEVICE)
        self.shares = torch.rand(batch, generator=rng).to(DEVICE)

    def scores(self, logits: Tensor) -> CoarseLogits:
        return CoarseLogits(logits, self.size, self.align_corners)


Loss = Callable[[Case, Scores, Scores], Tensor]

LOSSES: dict[str, Loss] = {
    "cross-entropy": lambda case, s, _: losses.cross_entropy(s, case.labels),
    "per image": lambda case, s, _: losses.cross_entropy_per_image(s, case.labels) @ case.shares.to(s.dtype),
    "balanced": lambda case, s, _: losses.balanced_cross_entropy(s, case.labels, power=0.5),
    "unbiased": lambda case, s, _: losses.unbiased_cross_entropy(s, case.labels, old_classes=case.old),
    "unbiased, old labels": lambda case, s, _: losses.unbiased_cross_entropy(
        s, case.labels, old_classes=case.old, learn_labelled_old=True
    ),
    "unbiased distillation": lambda _, s, t: losses.unbiased_distillation(s, t),
    "labels trusted": lambda case, s, t: losses.unbiased_distillation(s, t, case.labels),
    "output distillation": lambda _, s, t: losses.output_distillation(s, t),
}


def run(case: Case, name: str, *, eager: bool = False, exact: bool = False) -> tuple[Tensor, Tensor]:
    """Loss, and gradient of −2.5 times the loss by the student's coarse logits."""
    student, teacher = (x.double() if exact else x for x in (case.student, case.teacher))
    student = student.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    scores, taught = case.scores(student), case.scores(teacher)
    assert exact or (is_fused(scores) and is_fused(taught))
    inputs: tuple[Scores, Scores] = (interpolate(scores), interpolate(taught)) if eager or exact else (scores, taught)
    loss = LOSSES[name](case, *inputs)
    (gradient,) = torch.autograd.grad(-2.5 * loss, student)
    return loss.detach(), gradient


def error(got: Tensor, true: Tensor) -> float:
    return float(torch.linalg.vector_norm(got.double() - true) / torch.linalg.vector_norm(true).clamp_min(1e-6))


def assert_as_accurate_as_eager(case: Case, name: str) -> None:
    true, eager, kernel = run(case, name, exact=True), run(case, name, eager=True), run(case, name)
    assert kernel[0].dtype == torch.float32
    assert kernel[1].dtype == case.student.dtype
    # The interpreter cuts numbers off to bfloat16, where a GPU rounds them.
    cut = 2**-8 if INTERPRETED and case.student.dtype == torch.bfloat16 else 0
    for got, by_eager, exact in zip(kernel, eager, true, strict=True):
        assert error(got, exact) <= 2 * error(by_eager, exact) + 1e-6 + cut


@runs_kernels
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss(name: str) -> None:
    assert_as_accurate_as_eager(Case(5, 3, (1, 2), (4, 7), batch=1 + (name == "per image")), name)


ODD = [
    (Case(1, 1, (1, 1), (3, 5)), "unbiased"),
    (Case(4, 4, (3, 2), (2, 1)), "labels trusted"),
    (Case(3, 2, (2, 2), (2, 2), dtype=torch.float16), "unbiased"),
    (Case(21, 16, (1, 2), (3, 40), align_corners=True, dtype=torch.bfloat16), "labels trusted"),
    (Case(300, 260, (2, 1), (5, 19), align_corners=True), "unbiased distillation"),
    (Case(6, 2, (3, 1), (1, 6), align_corners=True, dtype=torch.float16), "unbiased, old labels"),
    (Case(3, 2, (2, 2), (5, 6), scale=200.0), "unbiased"),
    (Case(3, 2, (1, 2), (5, 6), scale=200.0), "unbiased distillation"),
]


@runs_kernels
@pytest.mark.parametrize(("case", "name"), ODD)
def test_odd_shapes(case: Case, name: str) -> None:
    assert_as_accurate_as_eager(case, name)


@runs_kernels
@pytest.mark.parametrize("align_corners", [False, True])
def test_reading_the_teacher(align_corners: bool) -> None:
    case = Case(5, 4, (1, 1), (3, 20), align_corners=align_corners)
    scores = case.scores(case.teacher)
    exact = interpolate(case.scores(case.teacher.double()))
    for read in (
        losses.prediction,
        losses.prediction_with_entropy,
        lambda s: losses.prediction_with_entropy(s, released_for=5),
    ):
        (classes, value), (true_classes, true_value) = read(scores), read(exact)
        assert torch.equal(classes, true_classes)
        torch.testing.assert_close(value.double(), true_value, rtol=2e-6, atol=2e-6)


@runs_kernels
def test_nothing_to_learn_costs_nothing() -> None:
    case = Case(4, 2, (1, 1), (4, 5))
    case.labels.fill_(255)
    for name in ("cross-entropy", "unbiased", "balanced"):
        loss, gradient = run(case, name)
        assert loss == 0
        assert not gradient.any()
    case.labels[0, 0, 0] = 4
    assert run(case, "cross-entropy")[0].isnan()


@runs_kernels
def test_memory_layout_changes_nothing() -> None:
    case = Case(5, 3, (1, 2), (3, 5))
    expected = run(case, "labels trusted"), run(case, "unbiased")
    case.student = case.student.to(memory_format=torch.channels_last)
    case.teacher = torch.stack([case.teacher, case.teacher], dim=-1)[..., 0]
    case.labels = case.labels.mT.contiguous().mT
    assert not case.student.is_contiguous()
    found = run(case, "labels trusted"), run(case, "unbiased")
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


@runs_kernels
def test_without_gradient() -> None:
    case = Case(5, 3, (1, 1), (4, 6))
    with torch.no_grad():
        loss = LOSSES["unbiased distillation"](case, case.scores(case.student), case.scores(case.teacher))
    assert torch.equal(loss, run(case, "unbiased distillation")[0])


@runs_kernels
@pytest.mark.parametrize("name", ["mib", "plop", "emseg"])
def test_methods_never_have_the_size_of_the_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(5, 3, (1, 1), (6, 5), batch=2)
    batch = Batch(torch.zeros(2, 3, *case.size, dtype=torch.uint8, device=DEVICE), case.labels)
    method = methods.parse(name)
    method.load_memory({"PseudoLabelCrossEntropy.thresholds": torch.tensor([0.5, 0.9, 0.7], device=DEVICE)})

    def terms(*, fused: bool) -> list[Tensor]:
        student, teacher = (
            Outputs(logits, torch.ones(2, 4, 1, 1, device=DEVICE), [], raw_stages=[case.teacher] * 4)
            for logits in (case.student.clone().requires_grad_(), case.teacher)
        )
        found = method.losses(method.view(batch, student, teacher, steps("2-2", 4)[1], fused=fused))
        return [*found.values(), *torch.autograd.grad(torch.stack(list(found.values())).sum(), student.logits)]

    expected = terms(fused=False)
    monkeypatch.setattr(CoarseLogits, "full_size", None)
    for got, want in zip(terms(fused=True), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_large_on_the_gpu(name: str, dtype: torch.dtype) -> None:
    assert_as_accurate_as_eager(Case(21, 16, (32, 32), (512, 512), batch=3, dtype=dtype), name)


@needs_gpu
@pytest.mark.parametrize("name", ["unbiased", "labels trusted"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("classes", "old", "grid", "size"),
    [
        (9, 5, (8, 8), (64, 64)),
        (21, 20, (33, 31), (520, 500)),
        (40, 16, (7, 9), (300, 290)),
        (151, 101, (16, 17), (130, 136)),
        (1100, 1000, (3, 4), (48, 61)),
    ],
)
def test_other_shapes_on_the_gpu(
    classes: int, old: int, grid: tuple[int, int], size: tuple[int, int], align_corners: bool, name: str
) -> None:
    assert_as_accurate_as_eager(Case(classes, old, grid, size, batch=3, align_corners=align_corners), name)


@needs_gpu
def test_large_readings_on_the_gpu() -> None:
    case = Case(21, 16, (32, 32), (512, 512), batch=2)
    exact = interpolate(case.scores(case.teacher.double()))
    for released_for in (None, 21):
        classes, value = losses.prediction_with_entropy(case.scores(case.teacher), released_for=released_for)
        true_classes, true_value = losses.prediction_with_entropy(exact, released_for=released_for)
        torch.testing.assert_close(value.double(), true_value, rtol=1e-5, atol=2e-6)
        assert (classes != true_classes).float().mean() < 1e-5


@needs_gpu
@pytest.mark.parametrize("name", LOSSES)
def test_no_synchronisation_equal_bits_and_little_memory(name: str) -> None:
    case = Case(21, 16, (32, 32), (512, 512), batch=4)
    first = run(case, name)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = run(case, name)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    one_map = case.labels.numel() * 21 * 4
    assert torch.cuda.max_memory_allocated() - before < one_map / 10


@only_elsewhere
def test_in_the_interpreter() -> None:
    passes_in_the_interpreter(__file__)
