"""Two processes of one run: what one of them meets, both act upon."""

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from incseg.engine.journal import Journal
from processes import PROCESSES, start
from samples import write_folder

SMALL = [
    "--model.encoder", "test_resnet", "--model.decoder", "deeplabv3plus", "--model.weights", "none",
    "--data.crop-size", "32", "--data.workers", "0", "--engine.accelerator", "cpu",
    "--engine.pictures", "0", "--engine.log-every", "1", "--engine.loggers", "none", "--engine.statistics", "false",
    "--engine.timeout", "60", "--optim.epochs", "1", "--optim.batch-size", "4",
]  # fmt: skip
pytestmark = PROCESSES


def stop_at_third(number: int) -> None:
    """Process 1 gets a signal after the third iteration; process 0 does not."""
    original = Journal.log

    def log(self: Journal, name: str, done: int, *rest: Any) -> None:
        original(self, name, done, *rest)
        if done == 3 and os.environ["LOCAL_RANK"] == "1":
            os.kill(os.getpid(), number)

    Journal.log = log  # type: ignore[assignment,method-assign]  # in this process alone


def run_two(folder: Path, *arguments: str | Path, number: int | None = None) -> tuple[list[int | None], str]:
    """The exit codes of both processes, and what the first one said."""
    before = None if number is None else partial(stop_at_third, number)
    ended = start(folder, *arguments, *SMALL, devices=2, before=before).wait()
    return ended.codes, " ".join(f"{ended.out[0]} {ended.errors[0]}".split())


@pytest.fixture
def command(tmp_path: Path) -> Callable[[], list[str | Path]]:
    data = write_folder(tmp_path / "data", train=16, val=5, size=32)
    return lambda: [
        "train", "folder/offline/overlapped", "--data-root", data, "--out", tmp_path / "run", "--method", "ft"
    ]  # fmt: skip


def test_a_request_to_one_process_stops_both_with_a_checkpoint(
    command: Callable[[], list[str | Path]], tmp_path: Path
) -> None:
    codes, said = run_two(tmp_path, *command(), number=signal.SIGTERM)
    assert codes == [75, 75], said
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert saved["iteration"] in (3, 4)
    codes, said = run_two(tmp_path, *command())
    assert codes == [0, 0], said
    assert f"resuming step 0 at iteration {saved['iteration']}" in said


def test_a_process_that_dies_ends_the_run_with_a_sentence(
    command: Callable[[], list[str | Path]], tmp_path: Path
) -> None:
    codes, said = run_two(tmp_path, *command(), number=signal.SIGKILL)
    assert codes == [1, -signal.SIGKILL]
    assert "another of the 2 processes of this run has ended" in said
    assert "Traceback" not in said


def test_images_that_either_process_cannot_read_are_listed_once(
    command: Callable[[], list[str | Path]], tmp_path: Path
) -> None:
    broken = [tmp_path / "data" / "images" / f"{index:03d}.png" for index in (2, 5, 17)]
    for path in broken:
        path.write_bytes(path.read_bytes()[:200])
    codes, said = run_two(tmp_path, *command(), "--data.on-error", "skip", "--data.score-on", "all")
    assert codes == [0, 0], said
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(result["unreadable"]) == 3
    for path, sentence in zip(broken, sorted(result["unreadable"]), strict=True):
        assert path.name in sentence
    assert result["steps"][0]["scored_images"] == 4


def test_losses_that_use_the_classifier_beside_the_network_train_it_in_both_processes(tmp_path: Path) -> None:
    """Replayed features, weights by their sign, and a classifier that learns beside the network."""
    data, out = write_folder(tmp_path / "data", train=16, val=5, size=32), tmp_path / "run"
    codes, said = run_two(
        tmp_path, "train", "folder/2-2/overlapped", "--data-root", data, "--out", out, "--method", "star+dkd"
    )
    assert codes == [0, 0], said
    remembered = load_file(out / "step-1" / "memory.safetensors")
    assert remembered["FeatureReplay.direction"].shape[0] == 5
    assert {name.split(".")[0] for name in remembered} == {"FeatureReplay", "AuxiliaryInitialisation"}
