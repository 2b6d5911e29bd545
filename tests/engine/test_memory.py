from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command_line import run
from incseg.config import RunConfig, to_yaml
from incseg.datasets import open_source
from incseg.engine.checkpoint import FinishedStep
from incseg.run_folder import RunFolder

MakeConfig = Callable[..., RunConfig]


@pytest.fixture
def two_steps(quick_config: MakeConfig, tmp_path: Path) -> Path:
    """The folder of a run as it looks after disc and square, then triangle and cross; its models are not needed."""
    folder = RunFolder(tmp_path / "run")
    for step in (0, 1):
        folder.step(step).mkdir(parents=True)
        FinishedStep({}, {"step": step}).save(folder, step)
    folder.config.write_text(to_yaml(quick_config("ft", task="2-2")), encoding="utf-8")
    return folder.path


def test_a_memory_is_balanced_and_has_the_labels_that_the_run_saw(
    two_steps: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("memory", two_steps, "--keep", "8", "--out", tmp_path / "kept") == 0
    shown = capsys.readouterr().out
    assert "8 of 21 images kept" in shown, "three images show no class"
    assert "--replay" in shown
    kept = open_source("folder", tmp_path / "kept")
    assert kept.classes == ("background", "disc", "square", "triangle", "cross")
    assert (len(kept.train), len(kept.val)) == (8, 0)
    truth = {name: np.asarray(Image.open(tiny_folder / "masks" / f"{name}.png")) for name in kept.train.ids}
    for index, name in enumerate(kept.train.ids):
        assert np.array_equal(np.asarray(Image.open(tiny_folder / "images" / f"{name}.png")),
                              kept.train.image(index).permute(1, 2, 0).numpy())  # fmt: skip
        mask = kept.train.mask(index).numpy()
        labelled = (mask != 0) & (mask != 255)
        assert np.array_equal(mask[labelled], truth[name][labelled])
        learnt_twice = {1, 2} & set(truth[name].flat) and {3, 4} & set(truth[name].flat)
        assert (mask == 0).any() == bool(learnt_twice), "of an image of one step, background may be the other's classes"
    counts = [sum((kept.train.mask(index) == channel).any().item() for index in range(8)) for channel in range(1, 5)]
    assert max(counts) - min(counts) <= 3


def test_what_cannot_be_kept_is_refused(two_steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for words, message in [
        ((two_steps, "--keep", "0"), "keeps nothing"),
        ((two_steps, "--keep", "2", "--out", tmp_path / "full"), "is not empty"),
        ((tmp_path / "full", "--keep", "2"), "is not the folder of a run"),
    ]:
        assert run("memory", *words) == 2
        assert message in capsys.readouterr().err
