import copy
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import coloured_patches, solved
from incseg.deploy.model import Model, open_model
from incseg.errors import InputError
from incseg.models import Architecture, Segmenter


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


@pytest.fixture(scope="module")
def solved_model() -> Model:
    torch.manual_seed(0)
    segmenter = solved(Segmenter(Architecture(encoder="test_resnet", decoder="unet"), [4]))
    return Model(segmenter, ("background", "dark", "medium", "bright"))


def expected_probabilities(model: Model, image: np.ndarray) -> np.ndarray:
    """(C, H, W) from the scores of the whole image, by the definition of each head."""
    scores = model.segmenter.segment(torch.tensor(image).permute(2, 0, 1)[None])[0].double().numpy()
    if model.segmenter.architecture.closed_form is None:
        likely = np.exp(scores - scores.max(axis=0))
    else:
        likely = np.clip(scores, 1e-6, 1)
    shares: np.ndarray = likely / likely.sum(axis=0)
    return shares


@pytest.mark.parametrize("name", ["tiny_model", "solved_model"])
def test_probabilities_are_given_where_they_are_asked_for(name: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    image = coloured_patches(1, 3, 70, 90)[0].permute(1, 2, 0).numpy()
    plain, sure = model.predict(image), model.predict(image, confidence=True)
    full = model.predict(image, probabilities=True)
    assert plain.confidence is plain.probabilities is sure.probabilities is None
    assert full.probabilities is not None
    assert full.confidence is not None
    assert sure.confidence is not None
    expected = expected_probabilities(model, image)
    np.testing.assert_allclose(full.probabilities, expected, atol=1e-3)  # float16
    np.testing.assert_allclose(full.confidence, expected.max(axis=0), atol=1e-3)
    np.testing.assert_array_equal(sure.confidence, full.confidence)
    np.testing.assert_array_equal(full.ids, plain.ids)
    np.testing.assert_array_equal(full.ids, expected.argmax(axis=0))


@pytest.mark.parametrize("name", ["tiny_model", "solved_model"])
def test_probabilities_of_large_images_come_from_tiles(name: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    image = coloured_patches(1, 3, 300, 650)[0].permute(1, 2, 0).numpy()
    (tiled,) = model.predict_all([image], tile=320, probabilities=True)
    expected = expected_probabilities(model, image)
    assert tiled.probabilities is not None
    assert tiled.confidence is not None
    assert tiled.probabilities.shape == (len(model.classes), 300, 650)
    assert tiled.probabilities.dtype == tiled.confidence.dtype == np.float16
    assert (abs(tiled.probabilities - expected) < 0.1).mean() > 0.9  # tiles lack the context behind their edges
    np.testing.assert_array_equal(tiled.confidence, tiled.probabilities.max(axis=0))
    np.testing.assert_allclose(tiled.probabilities.astype(float).sum(axis=0), 1, atol=2e-3)


def test_the_first_image_of_another_scale_comes_with_a_warning(tiny_model: Model) -> None:
    segmenter = copy.copy(tiny_model.segmenter)
    segmenter.architecture = segmenter.architecture.model_copy(update={"seen_side": 40})
    model = replace(tiny_model, segmenter=segmenter)
    small, large = np.zeros((32, 60, 3), np.uint8), np.zeros((32, 160, 3), np.uint8)
    with warnings.catch_warnings(action="error"):
        model.predict(small)
        model.limited_to(40).predict(large)
    with pytest.warns(UserWarning, match=r"160 pixels .* reduce large images with model\.limited_to\(40\)") as caught:
        model.predict(large)
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        model.predict(large)
