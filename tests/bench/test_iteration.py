from pathlib import Path

import pytest

from incseg.bench import iteration as step
from incseg.bench.iteration import benchmark_step
from incseg.errors import InputError


def test_every_method_is_measured_beside_ft(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "quick.yaml"
    recipe.write_text(
        "protocol: folder/2-2/overlapped\ndata: {crop_size: 64, workers: 0}\noptim: {batch_size: 4}\n"
        "model: {encoder: test_resnet, weights: none}\n"
    )
    monkeypatch.setattr(step, "median_milliseconds_in_turns", lambda runs, **_: [run() or 5.0 for run in runs])
    monkeypatch.setattr(step, "peak_extra_bytes", lambda run, _: run() or 2**30)
    table = benchmark_step(["mib", "ewc", "mib"], str(recipe), tiny_folder, device="cpu")
    assert [row[0] for row in table.rows] == ["ft", "mib", "ewc"]
    assert table.rows[1][1:] == ["5.0", "1.00", "1.00"]


def test_a_single_step_is_refused() -> None:
    with pytest.raises(InputError, match="shapes/offline has a single step"):
        benchmark_step(["mib"], "shapes/offline")
