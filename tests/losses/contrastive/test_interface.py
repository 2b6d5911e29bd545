"""Contrastive distillation on any machine: eager against the float64 twin, chunked against eager, and the edges."""

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import reference
from contrast_cases import Case, in_float64, relative_error, run
from incseg.losses import contrastive_distillation, contrastive_distillation_global, share_with_positive
from incseg.losses.contrastive import chunked as contrastive_chunked
from incseg.losses.contrastive import interface


def case(
    n: int,
    m: int,
    dim: int = 16,
    classes: int = 5,
    *,
    dtype: torch.dtype = torch.float32,
    sigma: bool = True,
    spread: float | None = None,
    seed: int = 0,
) -> Case:
    """Random rows with labels −1 … 4; with ``spread``, rows near one centre per class."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 4, (n + m,), generator=rng)
    rows = torch.randn(n + m, dim, generator=rng)
    if spread is not None:
        rows = torch.randn(6, dim, generator=rng)[labels + 1] + spread * rows
    probs = torch.softmax(3 * torch.randn(n + m, classes, generator=rng), dim=1)
    return {
        "anchors": rows[:n].to(dtype),
        "anchor_labels": labels[:n],
        "teacher": rows[n:].to(dtype),
        "teacher_labels": labels[n:],
        "anchor_probs": probs[:n] if sigma else None,
        "teacher_probs": probs[n:] if sigma else None,
    }


@pytest.mark.parametrize("backend", ["eager", "chunked"])
@pytest.mark.parametrize("denominator", ["negatives", "pair"])
@pytest.mark.parametrize("sigma", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.07, 0.01])
def test_value_is_the_papers(backend: str, denominator: str, sigma: bool, temperature: float) -> None:
    inputs = in_float64(case(13, 9, sigma=sigma))
    inputs["anchors"][2] = 0
    loss, _ = run(inputs, backend=backend, denominator=denominator, temperature=temperature)
    lists: Case = {k: None if x is None else x.tolist() for k, x in inputs.items()}
    expected = reference.contrastive_distillation(**lists, temperature=temperature, denominator=denominator)
    assert loss.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("backend", ["eager", "chunked"])
@pytest.mark.parametrize("denominator", ["negatives", "pair"])
@pytest.mark.parametrize("sigma", [True, False])
def test_gradient_is_the_values(backend: Any, denominator: Any, sigma: bool) -> None:
    inputs = in_float64(case(7, 5, dim=4, sigma=sigma))

    def loss(anchors: Tensor) -> Tensor:
        return contrastive_distillation(
            **{**inputs, "anchors": anchors}, backend=backend, denominator=denominator, temperature=0.2
        )

    assert torch.autograd.gradcheck(loss, inputs["anchors"].requires_grad_())


def test_detach_contrast_leaves_the_gradient_of_the_anchors_role() -> None:
    inputs = in_float64(case(11, 6))
    as_anchor = inputs["anchors"].clone().requires_grad_()
    rows = torch.cat([inputs["anchors"], inputs["teacher"]])
    labels = torch.cat([inputs["anchor_labels"], inputs["teacher_labels"]])
    # The definition once more, with a separate copy of the student as contrast.
    unit, other = (x / x.norm(dim=1, keepdim=True) for x in (as_anchor, rows))
    s = unit @ other.T / 0.07
    valid = (labels[:11, None] >= 0) & (labels >= 0)
    same = labels[:11, None] == labels
    positive = valid & same & ~torch.eye(11, 17, dtype=torch.bool)
    log = s.masked_fill(~(valid & ~same), -torch.inf).logsumexp(1, keepdim=True)
    probs = torch.cat([inputs["anchor_probs"], inputs["teacher_probs"]])
    terms = torch.where(positive, probs[:11] @ probs.T * (log - s), 0).sum(1) / positive.sum(1).clamp_min(1)
    expected = torch.autograd.grad(terms[labels[:11] >= 0].mean() * -2.5, as_anchor)[0]
    for backend in ("eager", "chunked"):
        torch.testing.assert_close(run(inputs, backend=backend, detach_contrast=True)[1], expected)


SHAPES = [(1, 0, 3, 2), (1, 7, 5, 1), (2, 1, 16, 3), (17, 0, 30, 4), (33, 31, 1, 151), (97, 130, 48, 21)]
VARIANTS = list(itertools.product(["negatives", "pair"], [False, True], [False, True]))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_chunked_equals_eager(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int, int, int],
    variant: tuple[str, bool, bool],
    temperature: float,
) -> None:
    monkeypatch.setitem(contrastive_chunked.BLOCK_ELEMENTS, "cpu", 20 * (shape[0] + shape[1]))
    denominator, detach, sigma = variant
    inputs = in_float64(case(*shape, sigma=sigma))
    settings: Case = {"denominator": denominator, "detach_contrast": detach, "temperature": temperature}
    loss, gradient = run(inputs, backend="chunked", **settings)
    eager_loss, eager_gradient = run(inputs, backend="eager", **settings)
    torch.testing.assert_close(loss, eager_loss, rtol=1e-9, atol=1e-12)
    # The gradient of a row x is what remains of 2.5/(τ|x|) · Σ_j W_aj f_j without its part along x.
    # In one dimension nothing remains: `chunked` says 0, autograd the rounding of the whole. How large that is follows
    # from the row's length, however small the difference, so the rows are compared in units of 1/(τ|x|).
    units = temperature * torch.linalg.vector_norm(inputs["anchors"], dim=1, keepdim=True)
    rounding = 2.5 * 16 * torch.finfo(torch.float64).eps
    torch.testing.assert_close(gradient * units, eager_gradient * units, rtol=1e-9, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spread", [None, 0.3, 1e-3])
@pytest.mark.parametrize("temperature", [0.07, 0.01])
def test_chunked_is_as_accurate_as_eager(dtype: torch.dtype, spread: float | None, temperature: float) -> None:
    inputs = case(150, 90, 64, 21, dtype=dtype, spread=spread, seed=3)
    true = run(in_float64(inputs), backend="eager", temperature=temperature)
    eager = run(inputs, backend="eager", temperature=temperature)
    chunked = run(inputs, backend="chunked", temperature=temperature)
    assert chunked[1].dtype == dtype
    assert chunked[0].dtype == torch.float32
    for got, by_eager, exact in zip(chunked, eager, true, strict=True):
        assert relative_error(got, exact) <= 2 * relative_error(by_eager, exact) + 2e-6


@pytest.mark.parametrize("backend", ["eager", "chunked"])
@pytest.mark.parametrize("denominator", ["negatives", "pair"])
@pytest.mark.parametrize(
    ("own", "other", "has_pair"),
    [
        ([], [], False),
        ([], [1, 2], False),
        ([-1, -1, -1], [2, 3], False),
        ([2, 2, 2], [2, 2], False),
        ([0, 1, 2], [3, 4], False),
        ([2], [], False),
        ([2, -1], [2, -1], False),
        ([2], [2, 3], True),
        ([65535, 65535, 255], [65535, 0], True),
    ],
)
def test_sets_without_a_pair_give_zero_not_nan(
    backend: str, denominator: str, own: list[int], other: list[int], has_pair: bool
) -> None:
    labels = {"anchor_labels": torch.tensor(own).long(), "teacher_labels": torch.tensor(other).long()}
    inputs = case(len(own), len(other)) | labels
    loss, gradient = run(inputs, backend=backend, denominator=denominator, temperature=0.05)
    assert torch.isfinite(gradient).all()
    assert (loss != 0) == has_pair
    assert gradient.any() == has_pair


@pytest.mark.parametrize("backend", ["eager", "chunked"])
def test_zero_vectors_are_orthogonal_and_get_no_gradient(backend: str) -> None:
    inputs = case(20, 10)
    inputs["anchors"][4:6] = 0
    inputs["teacher"][3] = 0
    loss, gradient = run(inputs, backend=backend)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert not gradient[4:6].any()
    assert gradient[:4].any()


@pytest.mark.parametrize("backend", ["eager", "chunked"])
def test_rows_outside_the_set_might_as_well_not_be_there(backend: str) -> None:
    inputs = in_float64(case(40, 30))
    own, other = inputs["anchor_labels"] >= 0, inputs["teacher_labels"] >= 0
    kept = {k: v[own if k.startswith("anchor") else other] for k, v in inputs.items()}
    loss, gradient = run(inputs, backend=backend)
    expected, expected_gradient = run(kept, backend=backend)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient[own], expected_gradient)
    assert not gradient[~own].any()


@pytest.mark.parametrize("backend", ["eager", "chunked"])
def test_memory_layout_does_not_matter(backend: str) -> None:
    inputs = case(31, 18, 24)
    columns = {k: v.t().contiguous().t() if v.ndim == 2 else torch.stack([v, v], 1)[:, 0] for k, v in inputs.items()}
    for got, expected in zip(run(columns, backend=backend), run(inputs, backend=backend), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", ["eager", "chunked"])
def test_only_the_anchors_learn_and_nothing_is_mutated(backend: Any) -> None:
    inputs = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in case(12, 8).items()}
    before = {k: v.detach().clone() for k, v in inputs.items()}
    contrastive_distillation(**inputs, backend=backend).backward()
    assert [k for k, v in inputs.items() if v.grad is not None] == ["anchors"]
    for key, value in inputs.items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("backend", ["eager", "chunked"])
def test_autocast_does_not_lower_the_precision(backend: Any) -> None:
    inputs = case(40, 20, 32)
    expected, expected_gradient = run(inputs, backend=backend)
    anchors = inputs["anchors"].clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrastive_distillation(**{**inputs, "anchors": anchors}, backend=backend)
    assert torch.equal(loss, expected)
    assert torch.equal(torch.autograd.grad(loss * -2.5, anchors)[0], expected_gradient)


def test_a_machine_without_a_gpu_never_imports_triton() -> None:
    script = (
        "import sys, torch; from incseg.losses import contrastive_distillation as loss;"
        "x, y = torch.randn(1100, 4), torch.arange(1100) % 3;"
        "[loss(x, y, x, y, backend=b) for b in ('auto', 'eager', 'chunked')];"
        "assert 'triton' not in sys.modules and 'incseg.losses.contrastive.triton_launch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_auto_is_one_of_the_backends() -> None:
    small, large = (
        {name: x.clamp_min(0) if "labels" in name else x for name, x in case(n, 10).items()} for n in (20, 1100)
    )
    assert torch.equal(run(small, backend="auto")[1], run(small, backend="eager")[1])
    assert torch.equal(run(large, backend="auto")[1], run(large, backend="chunked")[1])


@pytest.mark.parametrize("sigma", [True, False])
@pytest.mark.parametrize("outside", [(), ("anchor_labels",), ("teacher_labels",)])
def test_rows_outside_their_sets_are_left_out_on_a_cpu(sigma: bool, outside: tuple[str, ...]) -> None:
    inputs = in_float64(case(20, 10, sigma=sigma))
    inputs |= {name: torch.full_like(inputs[name], -1) for name in outside}
    for found, expected in zip(run(inputs, backend="auto"), run(inputs, backend="eager"), strict=True):
        torch.testing.assert_close(found, expected)


def test_asked_to_keep_them_it_is_the_definition_to_the_bit() -> None:
    inputs = case(20, 10)
    assert (inputs["anchor_labels"] < 0).any()
    found = contrastive_distillation_global(**inputs, only_members=False)
    assert torch.equal(found, contrastive_distillation(**inputs, backend="eager"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "fast"}, "backend must be"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"denominator": "all"}, "denominator must be"),
        ({"teacher_probs": None}, "together"),
        ({"anchor_labels": torch.zeros(3)}, "one label per row"),
        ({"teacher": torch.zeros(4, 5)}, "one D"),
    ],
)
def test_wrong_input_is_answered_with_a_sentence(settings: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        contrastive_distillation(**{**case(6, 4), **settings})


def test_chunked_memory_is_linear() -> None:
    """The largest tensor that the chunked backend makes is a block or the joined rows, never N×M."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.untyped_storage().nbytes() // out.element_size())
            return out

    with Watch():  # type: ignore[no-untyped-call]
        run(case(3000, 1500, 8), backend="chunked")
    assert largest <= contrastive_chunked.BLOCK_ELEMENTS["cpu"]


@pytest.mark.parametrize(
    ("anchors", "teacher", "share"),
    [([0, 0, 1, -1, 2], [1, 3], 3 / 4), ([0, 1, -1], [2], 1.0), ([-1], [0], 1.0), ([], [], 1.0), ([3, 3], [], 1.0)],
)
def test_the_share_of_anchors_with_a_positive(anchors: list[int], teacher: list[int], share: float) -> None:
    labels = [torch.tensor(ids, dtype=torch.int64) for ids in (anchors, teacher)]
    assert share_with_positive(*labels, num_classes=4).item() == share


def test_a_compiler_that_fails_is_told_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str) -> None:
        raise RuntimeError("Failed to find C compiler\nand more")

    monkeypatch.setattr(interface, "_streamed_backend", fails)
    with pytest.warns(UserWarning, match=r"pixels are contrasted without kernels.*Failed to find C compiler\)"):
        assert not interface._builds.__wrapped__(torch.device("cpu"), torch.float16, torch.float32)
