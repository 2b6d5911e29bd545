import json
from pathlib import Path

import pytest

from command_line import InThisProcess, run
from incseg import config
from incseg.cli import studies

SOME = ("ft", "mib+ucd")


@pytest.mark.usefixtures("few_shapes")
def test_the_demo_runs_its_methods_from_one_first_step(
    tmp_path: Path, processes: InThisProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cheap = {"optim": {"epochs": 1, "batch_size": 64}, "engine": {"pictures": 1}}
    original = config.load_recipe

    def quick(recipe: str, overrides: config.Layer = {}, **rest: bool) -> config.RunConfig:  # noqa: B006
        return original(recipe, config.merge(overrides, cheap), **rest)

    for user in ("incseg.study.planned_run", "incseg.cli.train"):
        monkeypatch.setattr(f"{user}.load_recipe", quick)
    assert set(SOME) < set(studies.DEMO)
    monkeypatch.setattr(studies, "DEMO", SOME)
    assert run("demo", "--out", tmp_path, "--seed", "1") == 0
    assert sorted(processes.folders()) == ["ft-seed1", "mib+ucd-seed1"]
    folders = [tmp_path / "demo" / name for name in processes.folders()]
    assert len({(folder / "step-0" / "model.safetensors").read_bytes() for folder in folders}) == 1
    for folder in folders:
        assert len(json.loads((folder / "result.json").read_text())["steps"]) == 3
    assert (tmp_path / "demo" / "report.html").is_file()
    said = capsys.readouterr().out
    assert "mib+ucd" in said
    assert "difference from" not in said, "of one seed"
