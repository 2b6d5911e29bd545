from pathlib import Path

import numpy as np
import pytest
import torch

from incseg.deploy.model import Model, open_model
from incseg.errors import InputError


def test_a_run_means_its_last_finished_step(tiny_run: Path) -> None:
    assert open_model(tiny_run, device="cpu").classes == ("background", "disc", "square", "triangle", "cross")
    assert open_model(tiny_run, step=0).classes == ("background", "disc", "square")


def test_a_step_and_a_file_are_models_too(tiny_run: Path, tiny_model: Model) -> None:
    images = torch.randint(0, 256, (1, 3, 40, 50), dtype=torch.uint8)
    expected = tiny_model.segmenter.segment(images)
    for path in (tiny_run / "step-1", tiny_run / "step-1" / "model.safetensors"):
        assert torch.equal(open_model(path, device="cpu").segmenter.segment(images), expected)


def test_a_model_can_be_saved_with_its_past(tiny_model: Model, tmp_path: Path) -> None:
    path = Model(tiny_model.segmenter, tiny_model.classes, [{"method": "ft"}]).save(tmp_path / "mine.safetensors")
    assert open_model(path).history == [{"method": "ft"}]
    assert open_model(path).path == path


def test_what_is_no_model_is_named(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, step, message in [
        (tmp_path / "nowhere", None, "there is no model .*nowhere: give the folder of a run"),
        (tmp_path / "empty", None, "empty holds no model"),
        (tiny_run, 2, "no finished step 2: choose from 0, 1"),
        (tiny_run / "step-1", 0, "a step can be chosen only of a run's folder"),
    ]:
        with pytest.raises(InputError, match=message):
            open_model(path, step)
    with pytest.raises(InputError, match="cannot compute on 'gpu'"):
        open_model(tiny_run, device="gpu")


def test_images_of_several_sizes_are_predicted_in_their_order(tiny_model: Model) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in [(40, 33), (64, 64), (40, 33)]]
    together = tiny_model.predict_all(images)
    assert [prediction.ids.shape for prediction in together] == [(40, 33), (64, 64), (40, 33)]
    for image, prediction in zip(images, together, strict=True):
        assert prediction.image is image
        assert (prediction.ids == tiny_model.predict(image).ids).mean() > 0.999  # batches may round otherwise
