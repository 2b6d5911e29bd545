"""Real processes: killed with SIGKILL and run again, and two that train together."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import incseg
from command_line import run
from incseg.engine.rescore import rescore
from processes import PROCESSES, start
from samples import write_folder

pytestmark = PROCESSES

SMALL = [
    "--model.encoder", "test_resnet", "--model.weights", "none", "--data.crop-size", "64", "--data.workers", "0",
    "--engine.accelerator", "cpu", "--engine.pictures", "1", "--engine.log-every", "1",
]  # fmt: skip


def run_two(*arguments: str | Path, said: Path) -> str:
    """Train in two processes, and return what the first one said."""
    said.mkdir(exist_ok=True)
    ended = start(said, *arguments, devices=2).wait()
    assert ended.codes == [0, 0], ended.errors
    return ended.out[0]


def test_killed_and_run_again_on_voc_it_ends_with_the_same_result(voc_tiny: Path, tmp_path: Path) -> None:
    command: list[str | Path] = ["train", "voc/15-5/overlapped", "--method", "mib+ucd", "--data-root", voc_tiny, *SMALL,
               "--optim.epochs", "2", "--optim.batch-size", "12", "--engine.checkpoint-every", "2"]  # fmt: skip
    assert run(*command, "--out", tmp_path / "whole") == 0
    cut = tmp_path / "cut"
    for wanted in (cut / "checkpoint.pt", cut / "step-0" / "scores.json"):
        (process,) = start(tmp_path, *command, "--out", cut).processes
        deadline = time.monotonic() + 120
        while not wanted.exists():
            assert process.exitcode is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.join()
        assert not (cut / "step-1" / "scores.json").exists()
    assert run(*command, "--out", cut) == 0
    assert (cut / "result.json").read_bytes() == (tmp_path / "whole" / "result.json").read_bytes()
    assert len(json.loads((cut / "result.json").read_text())["classes"]) == 21


def test_two_processes_train_one_model_and_score_every_image_once(tmp_path: Path) -> None:
    """The first time as a person starts them: one command, which starts the second process itself."""
    data = write_folder(tmp_path / "data", train=16, val=5)
    command: list[str | Path] = ["train", "folder/2-2/overlapped", "--data-root", data, *SMALL, "--optim.epochs", "2",
               "--optim.batch-size", "4"]  # fmt: skip
    command += ["--method", "mib+ucd"]
    typed = [sys.executable, "-m", "incseg", *map(str, [*command, "--engine.devices", "2", "--out", tmp_path / "two"])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(typed, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert run(*command, "--out", tmp_path / "one") == 0
    assert rescore(tmp_path / "two")["steps"] == json.loads((tmp_path / "two" / "result.json").read_text())["steps"]
    before = (tmp_path / "two" / "step-1" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "two" / "step-1")
    said = run_two(*command, "--data.cache", "ram", "--out", tmp_path / "two", said=tmp_path)
    assert said.count("images are kept in RAM") == 1, "each process keeps them, the first says so"
    assert (tmp_path / "said-1.out").read_text() == ""
    assert (tmp_path / "two" / "step-1" / "model.safetensors").read_bytes() == before
    two, one = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("two", "one"))
    for pair in zip(two["steps"], one["steps"], strict=True):
        pixels = [torch.tensor(step["confusion"]).sum(1) for step in pair]
        assert torch.equal(*pixels), "each validation pixel must be counted exactly once"
    assert_same_models(tmp_path / "two", tmp_path / "one")


def assert_same_models(two: Path, one: Path) -> None:
    """Weights, and statistics of batch normalisation: two processes add up in another order."""
    for step in range(2):
        found, expected = (load_file(run / f"step-{step}" / "model.safetensors") for run in (two, one))
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=1e-4, msg=f"{key} of step {step}")


def test_two_processes_share_thresholds_and_importance(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=16, val=3)
    command: list[str | Path] = ["train", "folder/2-2/overlapped", "--data-root", data, *SMALL, "--optim.epochs", "1",
               "--optim.batch-size", "4", "--method", "plop+ewc"]  # fmt: skip
    run_two(*command, "--out", tmp_path / "two", said=tmp_path)
    assert run(*command, "--out", tmp_path / "one") == 0
    assert_same_models(tmp_path / "two", tmp_path / "one")


def test_two_processes_solve_what_one_solves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both begin with the same step 0: each gathers its share of the images, and their sums add up."""
    data = write_folder(tmp_path / "data", train=16, val=5)
    command: list[str | Path] = ["train", "folder/2-1/overlapped", "--data-root", data, *SMALL, "--optim.epochs", "2",
               "--optim.batch-size", "4"]  # fmt: skip
    assert run(*command, "--method", "ft", "--out", tmp_path / "ft") == 0
    command += ["--method", "analytic", "--analytic.width", "128", "--first-step", tmp_path / "ft"]
    capsys.readouterr()
    assert run(*command, "--out", tmp_path / "one") == 0
    assert capsys.readouterr().out.count("step 2 in closed form") == 1
    assert run_two(*command, "--out", tmp_path / "two", said=tmp_path).count("step 2 in closed form") == 1
    for step in range(3):
        one, two = (load_file(tmp_path / name / f"step-{step}" / "memory.safetensors") for name in ("one", "two"))
        for key in one.keys() - {"ClosedForm.model"}:  # a checksum: the two heads differ in their last digits
            torch.testing.assert_close(two[key], one[key], rtol=1e-5, atol=1e-3)
        assert incseg.load(tmp_path / "two", step).statistics() is not None, "those of the model that was saved"
    results = [json.loads((tmp_path / name / "result.json").read_text())["steps"] for name in ("one", "two")]
    for pair in zip(*results, strict=True):
        first, second = (torch.tensor(step["confusion"]) for step in pair)
        assert (first - second).abs().sum() <= 1e-3 * first.sum()  # sums in float32 in another order


def test_two_processes_train_a_network_with_parameters_it_never_uses(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=16, val=5)
    small = [argument.replace("test_resnet", "efficientnet-b0") for argument in SMALL]
    run_two("train", "folder/2-2/overlapped", "--data-root", data, *small, "--model.decoder", "fpn", "--method",
            "rw", "--optim.epochs", "1", "--optim.batch-size", "4", "--out", tmp_path / "run",
            said=tmp_path)  # fmt: skip
    assert len(json.loads((tmp_path / "run" / "result.json").read_text())["steps"]) == 2


def test_what_one_process_refuses_all_refuse_in_a_sentence(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=16, val=5)
    done = start(tmp_path, "train", "folder/2-1/overlapped", "--data-root", data, *SMALL, "--optim.batch-size", "4",
                 "--method", "recall", "--recall.generator", "math:sqrt", "--recall.images", tmp_path / "pictures",
                 "--out", tmp_path / "run", devices=2).wait()  # fmt: skip
    assert done.codes == [2, 2], done.errors
    assert "the generator 'math:sqrt' cannot make a picture of 'disc'" in "".join(done.errors)
    assert "Traceback" not in "".join(done.errors)


@pytest.mark.parametrize(("method", "task"), [("recall", "2-1"), ("emseg", "2-2"), ("rw", "2-2")])
def test_memories_and_replay_work_in_two_processes(method: str, task: str, tmp_path: Path) -> None:
    """What a method remembers is one thing, not one per process: a run that resumes from it goes on alike."""
    data = write_folder(tmp_path / "data", train=16, val=5)
    command: list[str | Path] = ["train", f"folder/{task}/overlapped", "--data-root", data, *SMALL,
               "--optim.epochs", "1", "--optim.batch-size", "4", "--method", method, "--out", tmp_path]  # fmt: skip
    if method == "recall":
        command += ["--recall.generator", "incseg.datasets.shapes:pictures_of",
                    "--recall.images", tmp_path / "pictures", "--recall.per-class", "2"]  # fmt: skip
    run_two(*command, said=tmp_path / "said")
    last = max(tmp_path.glob("step-*"))
    files = [last / name for name in ("model.safetensors", "memory.safetensors")]
    before = [file.read_bytes() for file in files]
    shutil.rmtree(last)
    run_two(*command, said=tmp_path / "said")
    assert [file.read_bytes() for file in files] == before
