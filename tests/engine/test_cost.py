"""What a step cost is written beside its model, also of a run that was interrupted or shares its step 0."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from incseg.config import RunConfig
from incseg.engine.assembly import train
from incseg.engine.cost import spent_on, write_cost
from incseg.engine.journal import Journal
from incseg.engine.provenance import source_commit
from incseg.errors import Stopped
from incseg.run_folder import RunFolder

MakeConfig = Callable[..., RunConfig]


def costs(folder: Path) -> list[dict[str, float]]:
    return [json.loads((folder / f"step-{index}" / "cost.json").read_text()) for index in (0, 1)]


def test_time_is_summed_over_interruptions_and_shared_with_step_0(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Journal.log

    def interrupting(self: Journal, name: str, done: int, *rest: Any) -> None:
        original(self, name, done, *rest)
        if (name, done) == ("step 0", 2):
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "log", interrupting)
        with pytest.raises(Stopped):
            train(quick_config("ft"), tmp_path / "ft")
    path = tmp_path / "ft" / "checkpoint.pt"
    saved = torch.load(path, weights_only=True)
    assert 0 < saved["seconds"] < 100
    torch.save({**saved, "seconds": 1000.0}, path)  # as if it had taken that long
    train(quick_config("ft"), tmp_path / "ft")
    first, second = costs(tmp_path / "ft")
    assert 1000 < first["seconds"] < 1100
    assert 0 < second["scoring_seconds"] < second["seconds"] < 100
    for index, cost in enumerate((first, second)):
        step = tmp_path / "ft" / f"step-{index}"
        assert cost["model_bytes"] == (step / "model.safetensors").stat().st_size
        assert cost["memory_bytes"] == (step / "memory.safetensors").stat().st_size

    trained = RunFolder(tmp_path / "ft")
    write_cost(trained, 0, {"seconds": first["seconds"], "scoring_seconds": 500.0})  # as if it had taken that long
    train(quick_config("analytic"), tmp_path / "analytic", first_step=tmp_path / "ft")
    solved = costs(tmp_path / "analytic")
    assert 500 < solved[0]["scoring_seconds"] < 600  # there, and here
    assert first["seconds"] < solved[0]["seconds"] < first["seconds"] + 100  # trained there, and solved here
    assert solved[0]["memory_bytes"] > 100_000 > first["memory_bytes"]  # the statistics
    trained.cost(0).unlink()
    assert spent_on(trained, 0) == {}  # a run from before this was measured


def test_the_commit_is_that_of_the_package_not_of_a_checkout_around_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    package, environment = tmp_path / "src", tmp_path / "site-packages"
    for folder in (package, environment):
        folder.mkdir()
        (folder / "__init__.py").touch()
    git("init")
    git("add", "src")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")[:12]
    assert source_commit(package) == commit
    assert source_commit(environment) == ""
    (package / "__init__.py").write_text("changed = True")
    source_commit.cache_clear()
    assert source_commit(package) == f"{commit}+changes"
    assert source_commit(tmp_path / "nowhere") == ""
