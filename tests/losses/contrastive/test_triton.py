"""The Triton kernels against eager in float64: on a GPU where there is one, else through Triton's interpreter.

Triton decides when it is first imported whether it compiles or interprets. Without a GPU the tests therefore run in a
process of their own, whose environment asks for the interpreter; that process runs this very file.
"""

import itertools
from typing import Any

import pytest
import torch

from interpreter import DEVICE, ON_GPU, needs_gpu, only_elsewhere, passes_in_the_interpreter, runs_kernels

pytest.importorskip("triton", reason="Triton is not installed")

from contrast_cases import Case, in_float64, relative_error, run
from incseg.losses import contrastive_distillation

# What float16 products may add to eager's own error, for the value and for the gradient; float32 keeps its accuracy.
ALLOWANCE = {torch.float32: (3e-6, 5e-6), torch.float16: (1e-3, 3e-3), torch.bfloat16: (1e-3, 3e-3)}


def case(
    n: int,
    m: int,
    dim: int,
    classes: int | None,
    *,
    dtype: torch.dtype = torch.float32,
    spread: float | None = None,
    seed: int = 0,
) -> Case:
    """Random rows with labels −1 … 4 and a zero row; with ``spread``, rows near one centre per class."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 5, (n + m,), generator=rng)
    rows = torch.randn(n + m, dim, generator=rng)
    if spread is not None:
        rows = torch.randn(6, dim, generator=rng)[labels + 1] + spread * rows
    rows[n // 2] = 0
    probs = torch.softmax(3 * torch.randn(n + m, classes or 1, generator=rng), dim=1)
    tensors = {
        "anchors": rows[:n].to(dtype),
        "anchor_labels": labels[:n],
        "teacher": rows[n:].to(dtype),
        "teacher_labels": labels[n:],
        "anchor_probs": probs[:n] if classes else None,
        "teacher_probs": probs[n:] if classes else None,
    }
    return {k: None if v is None else v.to(DEVICE) for k, v in tensors.items()}


def assert_as_accurate_as_eager(inputs: Case, **settings: Any) -> None:
    true = run(in_float64(inputs), backend="eager", **settings)
    eager = run(inputs, backend="eager", **settings)
    kernel = run(inputs, backend="triton", **settings)
    assert kernel[1].dtype == inputs["anchors"].dtype
    allowances = ALLOWANCE[inputs["anchors"].dtype]
    for got, by_eager, exact, allowance in zip(kernel, eager, true, allowances, strict=True):
        assert torch.isfinite(got).all()
        assert relative_error(got, exact) <= 2 * relative_error(by_eager, exact) + allowance


VARIANTS = list(itertools.product(["negatives", "pair"], [False, True], [0.07, 0.01]))


@runs_kernels
@pytest.mark.parametrize(("denominator", "detach", "temperature"), VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_variant(denominator: str, detach: bool, temperature: float, dtype: torch.dtype) -> None:
    rows = (140, 70) if ON_GPU and dtype == torch.float16 else (70, 40)  # more than one tile of each kind
    inputs = case(*rows, 20, 5, dtype=dtype)
    assert_as_accurate_as_eager(inputs, denominator=denominator, detach_contrast=detach, temperature=temperature)


@runs_kernels
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((5, 0, 16, None), torch.float32),
        ((3, 9, 1, 2), torch.bfloat16),
        ((33, 1, 300, 40), torch.float32),
        ((130, 129, 256, None), torch.bfloat16),
        ((40, 60, 64, 151), torch.float16),
    ],
)
def test_odd_shapes(shape: tuple[int, int, int, int | None], dtype: torch.dtype) -> None:
    assert_as_accurate_as_eager(case(*shape, dtype=dtype))


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("spread", [0.3, 1e-3])
def test_clustered_rows(dtype: torch.dtype, spread: float) -> None:
    """Near-duplicates leave a gradient far smaller than its terms; float16 products are held to those terms there."""
    inputs = case(90, 50, 32, 5, dtype=dtype, spread=spread)
    if dtype == torch.float32:
        assert_as_accurate_as_eager(inputs)
        return
    true, got = run(in_float64(inputs), backend="eager"), run(inputs, backend="triton")
    scale = 2.5 / 0.07 / inputs["anchors"].double().norm(dim=1).clamp_min(1e-6)
    worst = (got[1].double() - true[1]).norm(dim=1) / scale * 90
    assert relative_error(got[0], true[0]) < 1e-3
    assert worst[inputs["anchors"].any(dim=1)].max() < 3e-3


@runs_kernels
@pytest.mark.parametrize("certainty", [0.0, 40.0])
def test_uncertainty_near_zero_and_one(certainty: float) -> None:
    inputs = case(90, 50, 32, 200, dtype=torch.float16)
    for name in ("anchor", "teacher"):
        labels = inputs[f"{name}_labels"].clamp_min(0)
        inputs[f"{name}_probs"] = torch.softmax(certainty * torch.eye(200, device=DEVICE)[labels], dim=1)
    assert_as_accurate_as_eager(inputs)


@runs_kernels
@pytest.mark.parametrize(
    ("own", "other"),
    [([-1, -1, -1], [2, 3]), ([2, 2, 2], [2, 2]), ([0, 1, 2], [3, 4]), ([2], []), ([2, -1], [2, -1])],
)
def test_sets_without_a_pair_give_zero(own: list[int], other: list[int]) -> None:
    labels = {
        "anchor_labels": torch.tensor(own, device=DEVICE).long(),
        "teacher_labels": torch.tensor(other, device=DEVICE).long(),
    }
    for temperature in (0.07, 0.01):
        loss, gradient = run(case(len(own), len(other), 16, 3) | labels, backend="triton", temperature=temperature)
        assert loss == 0
        assert not gradient.any()


@runs_kernels
def test_both_ways_to_sort_give_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from incseg.losses.contrastive import triton_launch as contrastive

    inputs = case(70, 66, 16, 3)  # several blocks to count in
    by_counting = run(inputs, backend="triton")
    monkeypatch.setattr(contrastive, "COUNTING_SORT_UP_TO", 0)
    for got, want in zip(run(inputs, backend="triton"), by_counting, strict=True):
        assert torch.equal(got, want)


@runs_kernels
def test_shapes_may_alternate() -> None:
    """What is kept from one launch for the next belongs to its own shapes, dtypes and addresses."""
    inputs = [case(33, 17, 16, 3), case(32, 16, 16, 3), case(33, 17, 16, 3, dtype=torch.float16)]
    inputs.append({k: torch.cat([v[:1], v])[1:] for k, v in inputs[0].items()})  # rows begin at other addresses
    first = [run(each, backend="triton") for each in inputs]
    for got, want in zip([run(each, backend="triton") for each in inputs], first, strict=True):
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])
    torch.testing.assert_close(first[3][1], first[0][1], rtol=1e-5, atol=1e-8)
    assert_as_accurate_as_eager(inputs[1])


@runs_kernels
def test_backward_is_as_precise_as_its_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever allows TF32 between the two passes does not change what forward kept for backward."""
    from incseg.losses.contrastive import triton_launch as contrastive

    inputs = case(40, 20, 16, 3)
    expected = run(inputs, backend="triton", upstream=1.0)[1]
    anchors = inputs["anchors"].clone().requires_grad_()
    loss = contrastive_distillation(**{**inputs, "anchors": anchors}, backend="triton")
    monkeypatch.setattr(contrastive, "is_precise", lambda _: False)
    assert torch.equal(torch.autograd.grad(loss, anchors)[0], expected)


@runs_kernels
def test_large_ids_and_memory_layout() -> None:
    inputs = case(60, 40, 24, 4)
    inputs["anchor_labels"] = torch.where(inputs["anchor_labels"] == 3, 65535, inputs["anchor_labels"])
    inputs["teacher_labels"] = torch.where(inputs["teacher_labels"] == 3, 65535, inputs["teacher_labels"])
    columns = {k: v.t().contiguous().t() if v.ndim == 2 else torch.stack([v, v], 1)[:, 0] for k, v in inputs.items()}
    expected = run(inputs, backend="triton")
    for got, want in zip(run(columns, backend="triton"), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-8)
    assert relative_error(expected[1], run(in_float64(inputs), backend="eager")[1]) < 1e-5


@runs_kernels
def test_rows_elsewhere_join_the_gradient() -> None:
    """Two halves of a batch, each with the other's statistics, give the gradient of the whole batch."""
    from incseg.losses.contrastive import triton_launch as contrastive
    from incseg.losses.contrastive.backend import ContrastSets, ContrastSettings

    whole = case(80, 30, 16, 4)
    _, expected = run(whole, backend="triton", upstream=1.5)
    settings = ContrastSettings(0.07, pair=False, detach_contrast=False)
    count = (whole["anchor_labels"] >= 0).sum()
    halves = []
    for own, rest in ((slice(0, 40), slice(40, 80)), (slice(40, 80), slice(0, 40))):
        joined = [torch.cat([whole[f"anchor{x}"][rest], whole[f"teacher{x}"]]) for x in ("_labels", "_probs")]
        features = torch.cat([whole["anchors"][rest], whole["teacher"]])
        mine = [whole[x][own] for x in ("anchors", "anchor_labels", "anchor_probs")]
        sets = ContrastSets(mine[0], mine[1], features, joined[0], mine[2], joined[1])
        halves.append((sets, contrastive.forward(sets, settings, count)[1]))
    stats = [contrastive.statistics(*half) * torch.tensor([[1.0], [1.5], [1.5]], device=DEVICE) for half in halves]
    upstream = torch.tensor(1.5, device=DEVICE)
    parts = [contrastive.backward(h[0], settings, h[1], upstream, stats[1 - i]) for i, h in enumerate(halves)]
    assert relative_error(torch.cat(parts), expected.double()) < 1e-5


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("denominator", ["negatives", "pair"])
@pytest.mark.parametrize("temperature", [0.07, 0.01])
def test_large_on_the_gpu(dtype: torch.dtype, denominator: str, temperature: float) -> None:
    assert_as_accurate_as_eager(
        case(3001, 2003, 256, 21, dtype=dtype), denominator=denominator, temperature=temperature
    )


@needs_gpu
def test_no_synchronisation_and_equal_bits() -> None:
    inputs = case(3000, 2000, 256, 21, dtype=torch.float16)
    first = run(inputs, backend="auto")
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = run(inputs, backend="auto")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@only_elsewhere
def test_in_the_interpreter() -> None:
    passes_in_the_interpreter(__file__)


@only_elsewhere
def test_asking_for_triton_without_a_gpu_is_answered_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="needs CUDA tensors and the anchors are on cpu"):
        run(case(6, 4, 8, None), backend="triton")


def test_float64_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="float64"):
        run(in_float64(case(6, 4, 8, None)), backend="triton")
