import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from command_line import run
from exports import write_coco
from incseg.config import DataConfig
from incseg.console import Console
from incseg.datasets.formats import convert
from incseg.deploy.model import Model
from incseg.deploy.scoring import FolderScores, score_folder
from incseg.errors import InputError
from incseg.images import index_image

Ids = NDArray[np.uint8]


def write_labels(root: Path, model: Model, classes: list[str], *, images: int = 3) -> Path:
    """Noise whose masks are what the model sees, with some pixels changed; ids are those of ``classes``."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    (root / "classes.txt").write_text("\n".join(classes))
    for index in range(images):
        picture = np.kron(rng.integers(0, 256, (4, 5, 3)), np.ones((16, 16, 1))).astype(np.uint8)
        seen = model.predict(picture).ids
        names = np.array(["background", *rng.permutation(classes[1:])])
        noise = names[rng.integers(0, len(names), seen.shape)]
        truth = np.where(rng.random(seen.shape) < 0.5, noise, np.array(model.classes)[seen])
        ids = np.vectorize({name: id_ for id_, name in enumerate(classes)}.get)(
            np.where(np.isin(truth, classes), truth, classes[0])
        )
        ids[0, :5] = 255
        Image.fromarray(picture).save(root / "images" / f"{index}.png")
        index_image(ids.astype(np.uint8)).save(root / "masks" / f"{index}.png")
    return root


def counted(root: Path, model: Model, names: list[str]) -> tuple[list[str], list[str]]:
    """True and predicted names of all labelled pixels, for an independent count."""
    classes = (root / "classes.txt").read_text().splitlines()
    truth: list[str] = []
    seen: list[str] = []
    for name in names:
        ids = np.array(Image.open(root / "masks" / f"{name}.png"))
        predicted = model.predict(root / "images" / f"{name}.png").ids
        truth += [classes[i] for i in ids[ids != 255]]
        seen += [model.classes[i] for i in predicted[ids != 255]]
    return truth, seen


def expected_rates(truth: list[str], seen: list[str], name: str) -> tuple[float, float, float, float]:
    """IoU, share, recall, precision, by their definitions."""
    true, found = np.array(truth) == name, np.array(seen) == name
    hits = (true & found).sum()
    return hits / (true | found).sum(), true.mean(), hits / true.sum(), hits / found.sum()


def test_a_folder_that_labels_everything_has_every_score(tiny_model: Model, tmp_path: Path) -> None:
    names = ["background", "Cross", "disc", "triangle", "square"]  # another order, another spelling
    data = write_labels(tmp_path / "data", tiny_model, ["background", "cross", "disc", "triangle", "square"])
    (data / "classes.txt").write_text("\n".join(names))
    (data / "val.txt").write_text("0\n2\n")
    scores = score_folder(tiny_model, data, Console())
    truth, seen = counted(data, tiny_model, ["0", "2"])
    truth = [name.lower() for name in truth]
    for name in tiny_model.classes:
        np.testing.assert_allclose(scores.rates[name], expected_rates(truth, seen, name))
    ious = [expected_rates(truth, seen, name)[0] for name in tiny_model.classes]
    assert scores.miou == pytest.approx(np.mean(ious[1:]))
    assert scores.miou_with_background == pytest.approx(np.mean(ious))
    assert scores.remarks() == [f"Scored on 2 images: those of {data} that its val.txt lists."]


def test_what_cannot_be_judged_has_no_score_and_is_said(tiny_model: Model, tmp_path: Path) -> None:
    data = write_labels(tmp_path / "data", tiny_model, ["background", "triangle", "moon", "cross"])
    scores = score_folder(tiny_model, data, Console())
    truth, seen = counted(data, tiny_model, ["0", "1", "2"])
    for name in ("triangle", "cross"):  # a moon that is called a cross is a mistake; what is not labelled is not one
        np.testing.assert_allclose(scores.rates[name], expected_rates(truth, seen, name))
    for name in ("background", "disc", "square"):
        assert all(map(math.isnan, scores.rates[name]))
    assert scores.miou == pytest.approx(
        np.mean([expected_rates(truth, seen, name)[0] for name in ("triangle", "cross")])
    )
    assert math.isnan(scores.miou_with_background)
    which, unlabelled, unknown = scores.remarks()
    assert f"Scored on 3 images: all of {data}, which has no val.txt" in which
    assert unlabelled.startswith("Not labelled there: disc, square.")
    assert unknown == "Not known to the model: moon. Their pixels are background to it."


def test_a_class_that_no_image_shows_is_not_measured(tiny_model: Model, tmp_path: Path) -> None:
    """Whatever the model takes for it, there is nothing to be right about."""
    classes = list(tiny_model.classes)
    data = write_labels(tmp_path / "data", tiny_model, classes)
    for file in (data / "masks").iterdir():
        ids = np.array(Image.open(file))
        ids[ids == 1] = 2
        index_image(ids).save(file)
    scores = score_folder(tiny_model, data, Console())
    assert scores.unshown == [classes[1]]
    assert all(math.isnan(value) for value in scores.rates[classes[1]])
    shown = [iou for name, (iou, *_) in scores.rates.items() if name in classes[2:]]
    assert scores.miou == pytest.approx(sum(shown) / len(shown))
    assert not math.isnan(scores.rates["background"][0])
    assert f"Shown by none of these images, and so not measured: {classes[1]}." in scores.remarks()


def test_images_kept_for_training_are_not_scored(tiny_model: Model, tmp_path: Path) -> None:
    data = write_labels(tmp_path / "data", tiny_model, list(tiny_model.classes))
    (data / "train.txt").write_text("0\n1\n")
    scores = score_folder(tiny_model, data, Console())
    assert scores.images == 1
    assert "not in its train.txt" in scores.which
    (data / "val.txt").write_text("")
    with pytest.raises(InputError, match=r"val\.txt names no image"):
        score_folder(tiny_model, data, Console())


def test_of_an_export_the_images_that_it_keeps_for_validation_are_scored(tiny_model: Model, tmp_path: Path) -> None:
    data = write_coco(tmp_path / "coco")
    for path in (data / "annotations").iterdir():
        path.write_text(path.read_text().replace('"cat"', '"disc"'))
    scores = score_folder(tiny_model, data, Console())
    assert f"Scored on 1 image: those of {data} that it keeps for validation." in scores.remarks()
    convert(data, tmp_path / "converted", DataConfig())
    assert (tmp_path / "converted" / "val.txt").read_text() == "c\n"
    assert scores.confusion.equal(score_folder(tiny_model, tmp_path / "converted", Console()).confusion)
    (data / "annotations" / "instances_val.json").unlink()
    scores = score_folder(tiny_model, data, Console())
    assert scores.images == 2
    assert scores.which.startswith(f"all of {data}, which is not divided into training and validation; the scores are")


def test_folders_that_do_not_fit_are_refused(tiny_model: Model, tmp_path: Path) -> None:
    data = write_labels(tmp_path / "data", tiny_model, ["background", "moon", "sun"])
    with pytest.raises(
        InputError, match=r"the model knows no class of .*: it knows disc, .*, and classes.txt names moon, sun"
    ):
        score_folder(tiny_model, data, Console())
    (data / "classes.txt").write_text("disc\nsquare\nbackground")
    with pytest.raises(InputError, match="is 'disc': background comes first"):
        score_folder(tiny_model, data, Console())
    with pytest.raises(InputError, match="nowhere is not a folder"):
        score_folder(tiny_model, tmp_path / "nowhere", Console())


def test_a_scale_far_from_training_is_told(
    tiny_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segmenter = copy.copy(tiny_model.segmenter)
    data = write_labels(tmp_path / "data", tiny_model, ["background", "disc"])
    for seen, told in ((1, 1), (None, 0)):
        segmenter.architecture = segmenter.architecture.model_copy(update={"seen_side": seen})
        score_folder(replace(tiny_model, segmenter=segmenter), data, Console())
        said = " ".join(capsys.readouterr().out.split())
        assert said.count("data have ") == said.count("reduce large images to about 1 pixels before") == told


def test_any_model_is_scored_from_the_command_line(
    tiny_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = [{"new_classes": ["disc", "square"]}, {"new_classes": ["triangle", "cross"]}]
    path = Model(tiny_model.segmenter, tiny_model.classes, history).save(tmp_path / "mine.safetensors")
    data = write_labels(tmp_path / "data", tiny_model, ["background", "triangle", "moon", "cross"])
    assert run("eval", path, "--data", data, "--out", tmp_path / "scores.json") == 0
    shown = capsys.readouterr().out
    scores = score_folder(tiny_model, data, Console())
    rows = {words[0]: words[1:] for line in shown.splitlines() if (words := line.replace("│", " ").split())}
    assert rows["triangle"] == ["new", *(f"{100 * value:.1f}" for value in _as_shown(scores, "triangle"))]
    assert rows["disc"] == ["old", "–", "–", "–", "–"]
    assert rows["moon"] == ["–", "–", "–", "–"]
    assert f"mIoU {100 * scores.miou:.1f} %, with background –." in shown
    written = json.loads((tmp_path / "scores.json").read_text())
    assert {name: written[name] for name in scores.to_json()} == scores.to_json()
    assert written["classes"]["triangle"]["iou"] == scores.rates["triangle"][0]
    assert written["classes"]["disc"]["iou"] is None
    assert written["unlabelled"] == ["disc", "square"]
    assert written["model"] == str(path)


def _as_shown(scores: FolderScores, name: str) -> tuple[float, ...]:
    iou, *others = scores.rates[name]
    return (*others, iou)
