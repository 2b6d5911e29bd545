import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import incseg
from command_line import run
from incseg.colours import palette
from incseg.deploy.model import Model
from incseg.deploy.prediction import Prediction
from incseg.fonts import font_for


@pytest.fixture
def prediction() -> Prediction:
    ids = np.zeros((40, 60), np.uint8)
    ids[10:30, 10:30], ids[0, 0] = 1, 2
    return Prediction(np.full((40, 60, 3), 200, np.uint8), ids, ("background", "chat", "hén", "none"))


def test_areas_are_counted_by_name(prediction: Prediction, tmp_path: Path) -> None:
    paths = prediction.save(tmp_path / "a" / "x.y")
    assert [path.name for path in paths] == ["x.y.overlay.jpg", "x.y.classes.png", "x.y.json"]
    said = json.loads(paths[2].read_text(encoding="utf-8"))
    assert (said["width"], said["height"]) == (60, 40)
    assert said["classes"]["chat"] == {"id": 1, "pixels": 400, "share": round(400 / 2400, 6)}
    assert said["classes"]["hén"]["pixels"] == 1
    assert said["classes"]["none"] == {"id": 3, "pixels": 0, "share": 0.0}
    with Image.open(paths[1]) as index:
        assert index.mode == "P"
        assert (np.array(index) == prediction.ids).all()
        assert np.array(index.convert("RGB"))[15, 15].tolist() == palette()[1].tolist()


def test_the_overlay_colours_classes_and_leaves_background_alone(prediction: Prediction) -> None:
    overlay = np.array(replace(prediction, colours="voc").overlay())
    assert (overlay[35, 50] == 200).all()
    assert overlay[15, 15].tolist() == [164, 100, 100]  # half grey, half the colour of class 1
    assert overlay[15, 29].tolist() == [128, 0, 0]  # its outline
    assert np.array(prediction.overlay())[15, 29].tolist() == palette()[1].tolist()
    assert (np.array(prediction.overlay(shown=["hén"]))[15, 15] == 200).all()
    assert (prediction.image == 200).all()


def test_the_picture_has_a_legend_of_what_is_there(prediction: Prediction) -> None:
    picture = np.array(prediction.picture())
    assert picture.shape[1] == 360  # six times as large, so that it can be read
    strip = picture[240:].reshape(-1, 3)
    for channel, shown in [(1, True), (2, True), (3, False)]:
        assert bool((strip == palette()[channel]).all(axis=1).any()) == shown


def test_a_name_that_no_font_can_draw_is_replaced_by_its_id(
    prediction: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("incseg.fonts._installed", lambda: ())
    monkeypatch.setattr("incseg.fonts.font_for", font_for.__wrapped__)
    names = ("background", "犬", "猫", "none")
    substitutes = ("background", "class 1", "class 2", "none")
    pictures = [np.array(replace(prediction, classes=classes).picture()) for classes in (names, substitutes)]
    assert (pictures[0] == pictures[1]).all()


@pytest.mark.parametrize("shape", [(1, 1), (3000, 5), (3, 2000), (70_000, 2)])
def test_images_of_any_shape_have_a_picture(shape: tuple[int, int], tmp_path: Path) -> None:
    strange = Prediction(np.zeros((*shape, 3), np.uint8), np.zeros(shape, np.uint8), ("background", "chat"))
    with Image.open(strange.save(tmp_path / "x")[0]) as picture:
        assert min(picture.size) >= 18
        assert picture.width >= 360


def test_files_and_folders_become_pictures_and_broken_ones_are_named(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, size in [("a.png", (50, 40)), ("b.png", (50, 40)), ("c.png", (64, 33))]:
        Image.effect_noise(size, 80).save(photos / name)
    (photos / "broken.png").write_text("no image")
    out = tmp_path / "out"
    assert run("predict", tiny_run, photos, "--out", out, "--device", "cpu", "--batch-size", "2") == 1
    shown = capsys.readouterr()
    assert "broken.png cannot be read: it is not an image file" in shown.out
    assert "3 of 4 images segmented" in shown.out
    assert shown.err.strip().startswith("incseg: 1 of 4 images could not be read")
    assert sorted(path.name for path in out.glob("*.json")) == ["a.json", "b.json", "c.json"]
    assert json.loads((out / "c.json").read_text())["width"] == 64
    (photos / "broken.png").unlink()
    assert run("predict", tiny_run, f"{photos}/*.png", "--step", "0", "--out", out) == 0
    assert list(json.loads((out / "a.json").read_text())["classes"]) == ["background", "disc", "square"]


def test_bad_requests_get_one_sentence(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    image = tmp_path / "a.png"
    requests: list[tuple[list[str | Path], str]] = [
        ([tiny_run, tmp_path / "none*"], "matches no image"),
        ([tmp_path / "nowhere", image], "there is no model"),
        ([tiny_run, image, "--tile", "100"], "a tile of 100 pixels is not possible"),
        ([tiny_run, image, "--batch-size", "0"], "a batch of 0 images"),
        ([tiny_run, image, "--out", image], "is a file"),
        ([tiny_run], "name at least one image"),
    ]
    for arguments, message in requests:
        assert run("predict", *arguments) == 2
        assert message in capsys.readouterr().err


def test_the_same_from_python(tiny_model: Model, tmp_path: Path) -> None:
    Image.effect_noise((50, 40), 80).save(tmp_path / "a.png")
    found = tiny_model.predict(str(tmp_path / "a.png"))
    assert found.ids.shape == (40, 50)
    assert sum(found.areas.values()) == pytest.approx(1)
    assert sum(share > 0 for share in found.areas.values()) > 1


def test_a_scale_far_from_training_is_told_once_with_a_remedy(
    tiny_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model remembers at which size its training crops showed whole images."""
    segmenter = copy.copy(tiny_model.segmenter)
    segmenter.architecture = segmenter.architecture.model_copy(update={"seen_side": 40})
    replace(tiny_model, segmenter=segmenter).save(tmp_path / "m.safetensors")
    photo = np.random.default_rng(0).integers(0, 256, (90, 160, 3), np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(photo).save(tmp_path / name)
    command = ("predict", tmp_path / "m.safetensors", tmp_path / "a.png", tmp_path / "b.png", "--out", tmp_path / "out")
    assert run(*command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("warning") == 1
    assert "a.png has 160 pixels on the longer side" in said
    assert (
        "4.0 times larger than in training and may not be recognised; reduce large images with --longest-side 40"
        in said
    )
    assert run(*command, "--longest-side", "40") == 0
    assert "warning" not in capsys.readouterr().out
    with Image.open(tmp_path / "out" / "a.classes.png") as ids:
        assert ids.size == (160, 90)
        expected = tiny_model.limited_to(40).predict(photo).ids
        assert np.array_equal(np.array(ids), expected)
    assert not np.array_equal(expected, tiny_model.predict(photo).ids)
    assert run(*command, "--longest-side", "8") == 2


def test_confidence_is_a_grey_picture(tiny_run: Path, tmp_path: Path) -> None:
    Image.effect_noise((50, 40), 80).save(tmp_path / "a.png")
    assert run("predict", tiny_run, tmp_path / "a.png", "--out", tmp_path / "out", "--confidence") == 0
    expected = incseg.load(tiny_run, device="cpu").predict(tmp_path / "a.png", confidence=True).confidence
    assert expected is not None
    with Image.open(tmp_path / "out" / "a.confidence.png") as picture:
        assert picture.mode == "L"
        np.testing.assert_allclose(np.array(picture) / 255, expected, atol=0.6 / 255)
    assert len(np.unique(expected)) > 10
