"""Images and masks that cannot be read: a run stops and names them, or leaves them out and lists them."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import run as incseg
from incseg.config import RunConfig
from incseg.engine.assembly import train
from incseg.engine.journal import Journal
from incseg.engine.left_out import LeftOut, over_all
from incseg.errors import InputError, Stopped
from incseg.results import Run
from incseg.run_folder import RunFolder, read_json

MakeConfig = Callable[..., RunConfig]


def flip(path: Path) -> None:
    """As a failing disk does: the end of the file is there, so that only decoding it finds the damage."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def broken(tiny_folder: Path, tmp_path: Path) -> Path:
    """A folder with two bad images to learn from, a bad mask, and a bad image to be scored on."""
    root = shutil.copytree(tiny_folder, tmp_path / "broken")
    for name in ("003", "004", "026"):
        flip(root / "images" / f"{name}.png")
    cut(root / "masks" / "007.png")
    return root


def config_for(quick_config: MakeConfig, root: Path, on_error: str, workers: int = 0, method: str = "ft") -> RunConfig:
    data = {"root": root, "crop_size": 64, "workers": workers, "on_error": on_error, "score_on": "all"}
    return quick_config(method, data=data, optim={"epochs": 2, "batch_size": 4})


def named(sentences: list[str]) -> list[str]:
    found = [re.match(r"the (?:image|mask) .*/((?:images|masks)/\d+\.png) cannot be read", text) for text in sentences]
    assert all(found), sentences
    return [match[1] for match in found if match]


@pytest.mark.parametrize("workers", [0, 2])
def test_by_default_the_file_is_named_and_the_run_stops(
    workers: int, quick_config: MakeConfig, broken: Path, tmp_path: Path
) -> None:
    config = config_for(quick_config, broken, "stop", workers)
    with pytest.raises(InputError, match=r"^the mask .*/masks/007.png cannot be read \([^\n]*$"):
        train(config, tmp_path / "run")
    shutil.copy(broken / "masks" / "008.png", broken / "masks" / "007.png")
    with pytest.raises(InputError, match=r"^the image .*/images/00[34].png cannot be read \([^\n]*$"):
        train(config, tmp_path / "run")


def stopped_at(iteration: int) -> Callable[..., None]:
    original = Journal.log

    def log(self: Journal, name: str, done: int, *rest: Any) -> None:
        original(self, name, done, *rest)
        if (name, done) == ("step 0", iteration):
            signal.raise_signal(signal.SIGTERM)

    return log


def test_skipped_images_are_replaced_listed_and_the_same_after_an_interruption(
    quick_config: MakeConfig, broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = train(config_for(quick_config, broken, "skip"), tmp_path / "whole")
    assert named(result["unreadable"]) == ["images/003.png", "images/004.png", "images/026.png", "masks/007.png"]
    steps = [step["unreadable"] for step in result["steps"]]
    assert {file for step in steps for file in named(step["training"])} == {"images/003.png", "images/004.png"}
    assert [named(step["scoring"]) for step in steps] == [["images/026.png"]] * 2
    assert [step["scored_images"] for step in result["steps"]] == [7, 7]  # of eight
    assert "4 file(s) could not be read" in Run.read(tmp_path / "whole").left_out

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "log", stopped_at(4))
        with pytest.raises(Stopped):
            train(config_for(quick_config, broken, "skip", workers=2), tmp_path / "stopped")
    train(config_for(quick_config, broken, "skip"), tmp_path / "stopped")
    one, two = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "stopped")
    assert one.result.read_bytes() == two.result.read_bytes()
    assert one.model(1).read_bytes() == two.model(1).read_bytes()
    assert one.metrics.read_bytes() == two.metrics.read_bytes()

    assert incseg("eval", one.path, "--out", tmp_path / "scores.json") == 0
    assert read_json(tmp_path / "scores.json")["average_miou"] == result["average_miou"]
    assert incseg("eval", one.path, "--data.on-error", "stop") == 2


def test_a_run_that_stopped_resumes_when_told_to_skip(quick_config: MakeConfig, broken: Path, tmp_path: Path) -> None:
    shutil.copy(broken / "masks" / "008.png", broken / "masks" / "007.png")
    with pytest.raises(InputError):
        train(config_for(quick_config, broken, "stop"), tmp_path / "run")
    assert len(train(config_for(quick_config, broken, "skip"), tmp_path / "run")["unreadable"]) == 3


def test_methods_that_gather_statistics_leave_them_out_too(
    quick_config: MakeConfig, broken: Path, tmp_path: Path
) -> None:
    result = train(config_for(quick_config, broken, "skip", method="analytic"), tmp_path / "run")
    assert set(named(result["steps"][1]["unreadable"]["training"])) <= {"images/003.png", "images/004.png"}


def test_a_step_whose_images_are_all_unreadable_says_so(
    quick_config: MakeConfig, tiny_folder: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(tiny_folder, tmp_path / "all")
    for path in (root / "images").iterdir():
        flip(path)
    with pytest.raises(InputError, match=r"^\d+ images of this step in a row cannot be read; the last: the image "):
        train(config_for(quick_config, root, "skip"), tmp_path / "run")


def test_every_file_is_counted_once() -> None:
    left_out = LeftOut(skips=True, say=lambda _: None)
    for note, sentence in ((left_out.from_training, "a"), (left_out.from_training, "a"), (left_out.from_scoring, "b")):
        assert note is not None
        note(sentence)
    assert left_out.entry() == {"unreadable": {"training": ["a"], "scoring": ["b"]}}
    assert over_all(["c", "a"], [left_out.entry(), json.loads("{}")]) == ["a", "b", "c"]
    assert LeftOut().entry() == {}
    assert LeftOut().from_training is None
