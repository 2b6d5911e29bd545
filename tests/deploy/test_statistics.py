"""Statistics beside a model: who has them, how they are gathered, and what can be learnt from them at once."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import incseg
from command_line import run
from incseg.config import RunConfig
from incseg.datasets import open_source
from incseg.deploy.model import Model
from incseg.deploy.statistics import choose_method, required_statistics
from incseg.engine.assembly import train
from incseg.errors import InputError
from incseg.models.closed_form import Statistics
from incseg.models.gather import Fit
from incseg.models.storage import as_memory, load_memory, save_memory
from samples import write_classes

QUICK = {"data": {"workers": 0}, "engine": {"accelerator": "cpu", "pictures": 0, "score_batch_size": 8}}
BASE = ("background", "disc", "square", "triangle", "cross")


@pytest.fixture
def alone(solved_base: Path, tmp_path: Path) -> Path:
    """The model as one file, without its statistics."""
    file = tmp_path / "alone.safetensors"
    shutil.copy(solved_base / "step-0" / "model.safetensors", file)
    return file


@pytest.fixture
def permuted(tiny_folder: Path, tmp_path: Path) -> Path:
    """The images of the tiny folder with its classes in another order."""
    folder, order = tmp_path / "permuted", [0, 3, 1, 4, 2]
    shutil.copytree(tiny_folder, folder)
    (folder / "classes.txt").write_text("\n".join(BASE[channel] for channel in order))
    table = np.arange(256, dtype=np.uint8)
    table[order] = np.arange(5)
    for file in (folder / "masks").iterdir():
        Image.fromarray(table[np.array(Image.open(file))]).save(file)
    return folder


def weight(model: Model) -> torch.Tensor:
    found: torch.Tensor = model.segmenter.classifier.weight  # type: ignore[assignment]
    return found


def test_statistics_are_gathered_for_a_model_from_elsewhere(
    alone: Path, tiny_folder: Path, permuted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert incseg.load(alone).statistics() is None
    assert run("statistics", alone, "--data", tiny_folder, "--workers", "0") == 0
    shown = capsys.readouterr().out
    size = (tmp_path / "alone.statistics.safetensors").stat().st_size
    assert f"alone.statistics.safetensors is written: {size / 1e6:.1f} MB" in shown
    assert "mIoU on 8 validation images:" in shown
    gathered, _ = required_statistics(incseg.load(alone))
    assert run("statistics", alone, "--data", permuted, "--workers", "0") == 2
    assert "already holds statistics of this model: add --overwrite" in capsys.readouterr().err
    assert run("statistics", alone, "--data", permuted, "--workers", "0", "--overwrite") == 0
    assert "is replaced" in capsys.readouterr().out
    again, _ = required_statistics(incseg.load(alone))
    for one, two in [(again.gram, gathered.gram), (again.cross, gathered.cross), (again.cells, gathered.cells)]:
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
    bigger = incseg.extend(alone, write_classes(tmp_path / "new", ["ring"], 10), tmp_path / "out", settings=QUICK)
    assert bigger.history[-1]["method"] == "analytic"
    assert bigger.classes == (*BASE, "ring")


def test_statistics_that_are_gathered_again_follow_the_rules_of_those_that_were_there(
    alone: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    assert run("statistics", alone, "--data", tiny_folder, "--workers", "0") == 0
    model = incseg.load(alone)
    own = Fit(balance=0.7, ridge=10.0, crops=2)
    memory = as_memory(required_statistics(model)[0], own, model.segmenter)
    save_memory(memory, tmp_path / "alone.statistics.safetensors")
    assert run("statistics", alone, "--data", tiny_folder, "--workers", "0", "--overwrite") == 0
    assert required_statistics(incseg.load(alone))[1] == replace(own, crops=0), "whole images are seen here"


def test_with_the_weights_it_began_with_a_model_keeps_its_original_encoder(
    tiny_model: Model, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, weights, other = (tmp_path / name for name in ("mine.safetensors", "began.safetensors", "other.safetensors"))
    tiny_model.save(model)
    state = tiny_model.segmenter.encoder.state_dict()
    began = {name: (tensor.contiguous() + 0.25).to(tensor.dtype) for name, tensor in state.items()}
    save_file(began, weights)
    save_file({"weight": torch.zeros(1)}, other)
    before, asked = model.read_bytes(), ("statistics", model, "--data", tiny_folder, "--workers", "0", "--weights")
    for given, message in ((other, "do not fit the encoder"), (tmp_path / "no.pth", "there is no weights file")):
        assert run(*asked, given) == 2
        assert message in capsys.readouterr().err
    assert model.read_bytes() == before
    assert run(*asked, weights) == 0
    assert "keeps its encoder as it was before training" in capsys.readouterr().out
    found = incseg.load(model)
    kept = found.segmenter.original
    assert kept is not None
    for name, tensor in kept.state_dict().items():
        torch.testing.assert_close(tensor, began[name], rtol=1e-3, atol=1e-3)
    assert required_statistics(found)[0].layout.original == 2
    image = np.zeros((40, 48, 3), np.uint8)
    assert np.array_equal(found.predict(image).ids, tiny_model.predict(image).ids), "its own head stays"
    incseg.extend(model, write_classes(tmp_path / "new", ["ring"], 10), tmp_path / "out", settings=QUICK)
    labelled = write_classes(tmp_path / "all", [*BASE[1:], "ring"], 4)
    assert run("statistics", tmp_path / "out", "--data", labelled, "--weights", weights, "--overwrite") == 2
    assert "the head of this model is solved already" in capsys.readouterr().err


def test_they_are_those_that_training_leaves(solved_base: Path, alone: Path, tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "shown")
    names = (folder / "train.txt").read_text().split()
    shown = [
        name for name in names if set(np.unique(np.array(Image.open(folder / "masks" / f"{name}.png")))) - {0, 255}
    ]
    (folder / "train.txt").write_text("\n".join(shown))  # training learns from images that show a class
    assert run("statistics", alone, "--data", folder, "--workers", "0") == 0
    left, gathered = (required_statistics(incseg.load(path))[0] for path in (solved_base, alone))
    assert incseg.load(solved_base).history[0]["training_images"] == len(shown)
    assert gathered.layout == left.layout
    torch.testing.assert_close(gathered.cells, left.cells)
    torch.testing.assert_close(gathered.cross, left.cross, rtol=1e-6, atol=1e-6)


def test_gathering_keeps_what_else_a_run_remembers(
    quick_config: Callable[..., RunConfig], tiny_folder: Path, tmp_path: Path
) -> None:
    engine = {"accelerator": "cpu", "pictures": 0, "statistics": False}
    train(quick_config("ewc", task="offline", optim={"epochs": 1, "batch_size": 8}, engine=engine), tmp_path / "run")
    memory = tmp_path / "run" / "step-0" / "memory.safetensors"
    before = load_file(memory)
    assert before
    assert not any(name.startswith("ClosedForm.") for name in before)
    assert run("statistics", tmp_path / "run", "--data", tiny_folder, "--workers", "0") == 0
    after = load_file(memory)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert any(name.startswith("ClosedForm.") for name in after)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["background", "disc", "square", "triangle", "crss"], "names 'crss', which the model does not know"),
        (["background", "disc", "square", "triangle"], "does not name cross: the statistics need every class"),
        (["disc", "square", "triangle", "cross", "rest"], "is 'disc': the background comes first"),
        (["background", "cross", "square", "triangle", "disc", "ring"], "names 'ring', which the model does not know"),
    ],
)
def test_a_folder_of_other_classes_is_refused(
    classes: list[str], message: str, alone: Path, permuted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (permuted / "classes.txt").write_text("\n".join(classes))
    assert run("statistics", alone, "--data", permuted) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not alone.with_name("alone.statistics.safetensors").exists()


def test_the_method_of_an_extension_follows_from_the_model(solved_base: Path, alone: Path, tmp_path: Path) -> None:
    method, reason = choose_method(incseg.load(solved_base))
    assert method == "analytic"
    assert "carries statistics" in reason
    assert "--method mib+ucd" in reason
    method, reason = choose_method(incseg.load(alone))
    assert method == "mib+ucd"
    assert "'incseg statistics MODEL --data DIR'" in reason
    new = write_classes(tmp_path / "new", ["ring"], 10)
    incseg.extend(solved_base, new, tmp_path / "solved", settings=QUICK)
    assert "--method" not in choose_method(incseg.load(tmp_path / "solved"))[1]  # it could not be trained
    (tmp_path / "solved" / "step-1" / "memory.safetensors").unlink()
    with pytest.raises(InputError, match=r"its statistics are not beside it .*memory\.safetensors"):
        choose_method(incseg.load(tmp_path / "solved"))


def samples(folder: Path) -> tuple[list[Path], list[Path]]:
    """What a folder has to learn from: some images are for validation."""
    images = [folder / "images" / f"{name}.png" for name in open_source("folder", folder).train.ids]
    return images, [folder / "masks" / path.name for path in images]


def test_learning_in_python_equals_an_extension(solved_base: Path, tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "new", ["ring", "moon"], 10, size=128)
    extended = incseg.extend(solved_base, folder, tmp_path / "run", settings=QUICK)
    model = incseg.load(solved_base)
    images, masks = samples(folder)
    learnt = model.learn(images, masks, ["ring", "moon"])
    assert learnt.classes == extended.classes
    assert torch.allclose(weight(learnt), weight(extended), rtol=1e-6, atol=1e-7)
    for image in images:
        assert (learnt.predict(image).ids == extended.predict(image).ids).all()
    assert model.classes == BASE, "the model itself stays as it is"
    in_memory = model.learn(
        [Image.open(image) if index % 2 else np.array(Image.open(image)) for index, image in enumerate(images)],
        [np.array(Image.open(mask)).astype(np.int64) for mask in masks],
        ["ring", "moon"],
    )
    assert torch.equal(weight(in_memory), weight(learnt))


def test_what_was_learnt_in_python_can_be_saved_and_extended(solved_base: Path, tmp_path: Path) -> None:
    images, masks = samples(write_classes(tmp_path / "rings", ["ring"], 10, size=128))
    learnt = incseg.load(solved_base).learn(images, masks, ["ring"])
    moons = write_classes(tmp_path / "moons", ["moon"], 10, size=128)
    from_memory = incseg.extend(learnt, moons, tmp_path / "from-memory", settings=QUICK)
    file = learnt.save(tmp_path / "mine.safetensors")
    assert (tmp_path / "mine.statistics.safetensors").is_file()
    from_file = incseg.extend(file, moons, tmp_path / "from-file", settings=QUICK)
    assert from_memory.classes == from_file.classes == (*BASE, "ring", "moon")
    assert torch.equal(weight(from_memory), weight(from_file))
    twice = incseg.load(file).learn(*samples(moons), ["moon"])
    assert torch.allclose(weight(twice), weight(from_file), rtol=1e-6, atol=1e-7)
    assert [record["new_classes"] for record in twice.history[1:]] == [["ring"], ["moon"]]
    incseg.load(solved_base).save(file)
    assert incseg.load(file).learn(images, masks, ["ring"]).classes == learnt.classes


def test_a_model_saved_without_statistics_leaves_none_of_another(
    solved_base: Path, alone: Path, tmp_path: Path
) -> None:
    file = incseg.load(solved_base).save(tmp_path / "mine.safetensors")
    incseg.load(alone).save(file)
    assert incseg.load(file).statistics() is None


IMAGE, MASK = np.zeros((64, 64, 3), np.uint8), np.zeros((64, 64), np.uint8)
MASK[16:48, 16:48] = 1


@pytest.mark.parametrize(
    ("images", "masks", "names", "message"),
    [
        ([IMAGE], [MASK], ["Disc"], "the model already knows 'disc'"),
        ([IMAGE], [MASK], ["ring", "Ring"], "'Ring' is named twice"),
        ([IMAGE], [MASK], ["ring", "disc"], "the model already knows 'disc'"),
        ([IMAGE], [MASK], "ring", "the names of the new classes are a list"),
        ([IMAGE], [MASK], [], "the names of the new classes are a list"),
        ([IMAGE], [MASK], ["ring", " "], "every new class needs a name"),
        ([IMAGE], [MASK[:32]], ["ring"], "masks[0] is 64×32 but its image is 64×64"),
        ([IMAGE], [MASK * 2], ["ring"], "the mask masks[0] holds the id 2, but there are only 2 classes"),
        ([IMAGE], [MASK], ["ring", "moon"], "no training image shows 'moon'"),
        ([IMAGE], [], ["ring"], "every image needs one mask, and there are 1 images and 0 masks"),
        ([], [], ["ring"], "there are 0 images"),
        ([IMAGE], [MASK / 2], ["ring"], "must be an array (H, W) of whole numbers, not (64, 64) float64"),
        ([IMAGE], [IMAGE], ["ring"], "must be an array (H, W) of whole numbers, not (64, 64, 3)"),
        ([IMAGE[..., 0]], [MASK], ["ring"], "an image array must be (H, W, 3)"),
        ([IMAGE], ["nowhere.png"], ["ring"], "the mask nowhere.png is missing"),
        ("a.jpg", "a.png", ["ring"], "images must be a list, also of one: not str"),
        (None, [MASK], ["ring"], "images must be a list, also of one: not NoneType"),
        ([torch.zeros(3, 64, 64)], [MASK], ["ring"], "an image must be a file, a Pillow image or an array"),
        ([IMAGE], [MASK], [None], "every new class needs a name of one line"),
        ([IMAGE], [MASK], ["ring\nmoon"], "every new class needs a name of one line"),
    ],
)
def test_what_cannot_be_learnt_is_named(
    images: list[Any], masks: list[Any], names: list[str], message: str, solved_base: Path
) -> None:
    with pytest.raises(InputError) as caught:
        incseg.load(solved_base).learn(images, masks, names)
    assert message in str(caught.value)


def test_statistics_of_a_sibling_are_refused(solved_base: Path, tmp_path: Path) -> None:
    """Two extensions of one model have the same features and as many classes."""
    model = incseg.load(solved_base)
    ring, moon = (
        model.learn([IMAGE], [MASK], [name]).save(tmp_path / f"{name}.safetensors") for name in ("ring", "moon")
    )
    assert incseg.load(ring).statistics() is not None
    inverted = model.learn([255 - IMAGE], [MASK], ["moon"]).save(moon)
    shutil.copy(tmp_path / "ring.statistics.safetensors", tmp_path / "moon.statistics.safetensors")
    with pytest.raises(
        InputError, match=r"not those that it was saved with, .* they belong to another model. Put its own"
    ):
        incseg.load(inverted).learn([IMAGE], [MASK], ["flower"])


def test_generators_are_lists_too_and_what_no_cell_shows_is_named(solved_base: Path) -> None:
    thin, model = np.zeros((64, 64), np.uint8), incseg.load(solved_base)
    thin[0, :2] = 1
    with pytest.warns(UserWarning, match="not learnt, because no cell of 8 pixels has its centre on it: ring"):
        learnt = model.learn((image for image in [IMAGE]), (mask for mask in [thin]), ["ring"])  # type: ignore[arg-type]
    assert learnt.classes == (*BASE, "ring")


def test_without_statistics_nothing_is_learnt(tiny_model: Model, solved_base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="carries no statistics of its training images: gather them with"):
        tiny_model.learn([IMAGE], [MASK], ["ring"])
    of_others = Statistics.empty(required_statistics(incseg.load(solved_base))[0].layout)
    file = incseg.load(solved_base).save(tmp_path / "mine.safetensors")
    memory = as_memory(of_others.with_classes(torch.ones(3)), Fit(), incseg.load(file).segmenter)
    save_memory(memory, tmp_path / "mine.statistics.safetensors")
    with pytest.raises(InputError, match="are of 2 classes and the model knows 4: they belong to another model"):
        incseg.load(file).learn([IMAGE], [MASK], ["ring"])


def test_statistics_of_another_network_are_refused_wherever_they_are_used(
    solved_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when a model is trained again and copied over the one before, without what lies beside it."""
    model = incseg.load(solved_base)
    file = model.save(tmp_path / "mine.safetensors")
    beside = tmp_path / "mine.statistics.safetensors"
    kept = beside.read_bytes()
    with torch.no_grad():
        next(model.segmenter.decoder.parameters()).add_(1e-3)
    replace(model, memory={}).save(file)
    assert not beside.exists()
    beside.write_bytes(kept)
    with pytest.raises(InputError, match="are not those that it was saved with"):
        incseg.load(file).learn([IMAGE], [MASK], ["ring"])
    write_classes(tmp_path / "new", ["ring"], images=6)
    assert run("extend", file, "--data", tmp_path / "new", "--out", tmp_path / "out") == 2
    assert "are not those that it was saved with" in capsys.readouterr().err
    older = {name: tensor for name, tensor in load_memory(beside).items() if not name.endswith("model")}
    save_memory(older, beside)
    assert incseg.load(file).statistics() is not None, "files of before do not say"
