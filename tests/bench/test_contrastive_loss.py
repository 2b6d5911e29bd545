"""The benchmark runs on a CPU, says what it measured and what it left out."""

from functools import partial
from pathlib import Path

import pytest
import torch

from incseg.bench import contrastive_loss as bench
from incseg.bench.measure import Hardware, median_milliseconds
from incseg.errors import InputError
from interpreter import needs_gpu


@pytest.fixture(autouse=True)
def _measured_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a measurement takes is not what is tested."""
    monkeypatch.setattr(bench, "median_milliseconds", partial(median_milliseconds, seconds=0.01))


def test_writes_a_table_and_a_plot_that_name_the_hardware(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.benchmark_contrastive(out=tmp_path, sizes=(48, 32), device="cpu")
    (table,), (picture,) = tmp_path.glob("*.md"), tmp_path.glob("*.png")
    text = table.read_text(encoding="utf-8")
    assert table.stem == picture.stem
    assert "threads" in text
    assert picture.name in text
    for n, m in ((32, 24), (48, 36)):
        for name in ("release (dense)", "eager", "chunked"):
            assert f"| {n} | {m} | {name} | " in text
    assert text.index("| 32 |") < text.index("| 48 |"), "a line of the plot goes from left to right"
    assert str(table) in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (0, -5):
        with pytest.raises(InputError, match=f"--sizes {size} is too small to measure"):
            bench.benchmark_contrastive(out=tmp_path, sizes=(32, size), device="cpu")
    with pytest.raises(InputError, match="is a file"):
        bench.benchmark_contrastive(out=Path(__file__), device="cpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="--device cuda needs a GPU"):
        bench.benchmark_contrastive(out=tmp_path, device="cuda")


def test_leaves_out_what_does_not_fit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "hardware", lambda _: Hardware("a small machine", "", 1000))
    inputs = bench.random_inputs(16, 12, torch.device("cpu"))
    found = [bench.measure(name, loss, inputs) for name, loss in bench.implementations(torch.device("cpu")).items()]
    assert [bool(x.skipped) for x in found] == [True, True, False]
    assert "not run: needs" in bench._row(found[0], 1.0)


def test_release_form_differs_from_the_definition_by_a_constant() -> None:
    """Without σ and with a positive for every anchor, its value is the paper's plus the rows' maximum (fact: 1/τ)."""
    inputs = bench.random_inputs(60, 45, torch.device("cpu"))
    inputs |= {key: torch.ones(len(inputs[key]), 1) for key in ("anchor_probs", "teacher_probs")}
    paper = bench.implementations(torch.device("cpu"))["eager"](inputs)
    assert bench.release_loss(inputs).item() == pytest.approx(paper.item() + 1 / bench.TEMPERATURE, rel=1e-4)


@needs_gpu
def test_the_captured_form_computes_what_the_launched_one_does(tmp_path: Path) -> None:
    device = torch.device("cuda")
    inputs = bench.random_inputs(256, 192, device)
    found: list[torch.Tensor] = []
    loss = bench.implementations(device)[bench.CAPTURED]

    def step() -> None:
        found[:] = [*torch.autograd.grad(loss(inputs), inputs["anchors"])]

    step()
    launched = found[0].clone()
    replay = bench._as_graph(step, device)
    found[0].zero_()
    replay()
    torch.testing.assert_close(found[0], launched)
    bench.benchmark_contrastive(out=tmp_path, sizes=(256,), device="cuda")
    (table,) = tmp_path.glob("*.md")
    assert f"| 256 | 192 | {bench.CAPTURED} | " in table.read_text(encoding="utf-8")
