"""A run reduces large images, its model remembers that and the scale it learnt at, and far-off sizes are told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SMALL
from incseg.config import RunConfig
from incseg.console import Console
from incseg.curriculum import Curriculum, build_curriculum
from incseg.deploy.export import _contract
from incseg.deploy.model import open_model
from incseg.engine.assembly import train
from incseg.engine.input_scale import remember_scale, scale_warning
from incseg.engine.rescore import rescore
from incseg.models import Segmenter
from incseg.protocol import Protocol
from samples import write_folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("large") / "data", train=6, val=2, size=192)


@pytest.fixture
def curriculum(quick_config: Callable[..., RunConfig], large: Path) -> Callable[..., Curriculum]:
    def make(**data: Any) -> Curriculum:
        config = quick_config(task="offline", data={"root": large, "workers": 0, **data})
        return build_curriculum(Protocol.parse(config.protocol), config.data)

    return make


def test_a_model_remembers_the_scale_of_its_first_training(curriculum: Callable[..., Curriculum]) -> None:
    student = Segmenter(SMALL, [5])
    remember_scale(student, curriculum(crop_size=32))
    assert student.architecture.seen_side == round(32 / 0.75**0.5)  # a crop shows three quarters of a square image
    remember_scale(student, curriculum(crop_size=64, longest_side=100))
    assert student.architecture.seen_side == 37
    assert student.architecture.longest_side == 100


def test_scored_images_far_from_the_crops_are_told(curriculum: Callable[..., Curriculum]) -> None:
    """Images of 192 pixels, shown at 37 in the crops but scored as they are."""
    student = Segmenter(SMALL, [5])
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"crop_size": 32}, True),
        ({"crop_size": 32, "longest_side": 64}, False),
        ({"crop_size": 32, "scoring": "paper"}, False),
        ({"crop_size": 96}, False),
    ]
    for data, told in cases:
        student.architecture = SMALL
        remember_scale(student, curriculum(**data))
        assert ("--data.longest-side 37" in scale_warning(student, curriculum(**data))) == told


def test_training_images_are_reduced_and_scored_ones_keep_their_size(curriculum: Callable[..., Curriculum]) -> None:
    plan = curriculum(crop_size=64, longest_side=64)
    images = plan.training_images(plan.steps[0], 64)
    assert images.split.image(0).shape == (3, 64, 64)
    assert images.split.mask(0).shape == images.split.shape(0) == (64, 64)
    assert set(images.split.mask(0).unique().tolist()) <= set(plan.source.train.mask(0).unique().tolist())
    assert images.pixel_counts(5).sum() <= 6 * 64 * 64
    assert plan.scored_images(plan.steps[0])[0][0].labels.shape == (192, 192)


def test_a_run_with_a_longest_side_from_training_to_prediction(
    quick_config: Callable[..., RunConfig], large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"root": large, "crop_size": 64, "longest_side": 64, "workers": 0}
    optim = {"epochs": 1, "batch_size": 2, "learning_rate": 0.05}
    result = train(quick_config(task="offline", data=data, optim=optim), tmp_path / "run", console=Console())
    assert "warning" not in capsys.readouterr().out
    model = open_model(tmp_path / "run", device="cpu")
    assert model.segmenter.architecture.longest_side == 64
    assert model.segmenter.architecture.seen_side == 74
    assert rescore(tmp_path / "run")["steps"][0]["confusion"] == result["steps"][0]["confusion"]
    assert model.predict(np.zeros((150, 200, 3), np.uint8)).ids.shape == (150, 200)
    assert "a longer side than 64 are to be reduced" in _contract(64)["images"]
