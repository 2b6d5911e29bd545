import inspect
import json
from pathlib import Path

import pytest

from incseg import config
from incseg.cli.train import run_demo
from incseg.console import Console

SOME = ("ft", "mib+ucd")


@pytest.mark.usefixtures("few_shapes")
def test_the_demo_runs_its_methods_from_one_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = config.load_recipe

    def quick(recipe: str, overrides: config.Layer) -> config.RunConfig:
        cheap = {"optim": {"epochs": 1, "batch_size": 64}, "engine": {"pictures": 1}}
        return original(recipe, config.merge(overrides, cheap))

    monkeypatch.setattr("incseg.cli.train.load_recipe", quick)
    assert set(SOME) < set(inspect.signature(run_demo).parameters["methods"].default)
    folders = run_demo(tmp_path, seed=1, console=Console(quiet=True), methods=SOME)
    assert [folder.name for folder in folders] == list(SOME)
    first = {(folder / "step-0" / "model.safetensors").read_bytes() for folder in folders}
    assert len(first) == 1
    for folder in folders:
        assert len(json.loads((folder / "result.json").read_text())["steps"]) == 3
