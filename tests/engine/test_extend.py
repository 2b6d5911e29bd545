import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import incseg
from command_line import run
from conftest import CLASSES, SMALL, decided
from incseg.config import DataConfig, RunConfig
from incseg.curriculum import Extension, build_curriculum
from incseg.datasets import open_source
from incseg.deploy.model import Model, open_model
from incseg.deploy.statistics import required_statistics
from incseg.engine.admission import check_run
from incseg.engine.assembly import train
from incseg.engine.evaluator import score, step_entry
from incseg.engine.extend import before_and_after, choose_settings
from incseg.engine.training_iteration import Iterations
from incseg.errors import InputError
from incseg.loading import stack
from incseg.models import Architecture, Segmenter
from incseg.models.closed_form import RandomFeatures, Statistics
from incseg.models.gather import Fit, feature_layout
from incseg.models.segmenter import padded_images
from incseg.models.storage import as_memory, describe_model
from incseg.protocol import Protocol
from incseg.results import Run
from incseg.run_folder import read_json, write_json

QUICK = {"optim": {"epochs": 1, "batch_size": 4}, "data": {"crop_size": 32, "workers": 0},
         "engine": {"accelerator": "cpu", "pictures": 1}}  # fmt: skip
DOTTED = ["--optim.epochs", "1", "--optim.batch-size", "4", "--data.crop-size", "32", "--data.workers", "0",
          "--engine.accelerator", "cpu"]  # fmt: skip
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    def write(name: str, *classes: str, images: int = 10, ids: int | None = None) -> Path:
        """Noise with a bright square per class."""
        rng = np.random.default_rng(len(name))
        for kind in ("images", "masks"):
            (tmp_path / name / kind).mkdir(parents=True)
        for index in range(images):
            image, mask = rng.integers(0, 100, (40, 48, 3), np.uint8), np.zeros((40, 48), np.uint8)
            for number in range(1, (ids or len(classes)) + 1):
                mask[4:20, 4 + 9 * number : 12 + 9 * number] = number
                image[mask == number] += np.uint8(40 * number)
            Image.fromarray(image).save(tmp_path / name / "images" / f"{index}.png")
            Image.fromarray(mask).save(tmp_path / name / "masks" / f"{index}.png")
        (tmp_path / name / "classes.txt").write_text("\n".join(["background", *classes]))
        return tmp_path / name

    return write


def test_a_model_learns_more_and_can_learn_more_again(
    tiny_model: Model, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: tensor.clone() for name, tensor in tiny_model.segmenter.state_dict().items()}
    given = replace(tiny_model, colours="voc")
    bigger = incseg.extend(given, folder("new", "ring", "flower"), tmp_path / "bigger", settings=QUICK)
    biggest = incseg.extend(tmp_path / "bigger", folder("more", "moon"), tmp_path / "biggest", settings=QUICK)
    assert bigger.classes == (*tiny_model.classes, "ring", "flower")
    assert biggest.classes == (*bigger.classes, "moon")
    assert [record["new_classes"] for record in biggest.history] == [["ring", "flower"], ["moon"]]
    assert [record["training_images"] for record in biggest.history] == [8, 8]
    assert biggest.segmenter.classifier.head_sizes == [3, 2, 2, 1]
    assert biggest.predict(np.zeros((40, 40, 3), np.uint8)).ids.shape == (40, 40)
    for name, tensor in tiny_model.segmenter.state_dict().items():
        assert torch.equal(tensor, before[name]), "the given model must stay as it is"
    for name in ("bigger", "biggest"):
        assert {path.name for path in (tmp_path / name).iterdir()} >= {
            "config.yaml", "result.json", "metrics.jsonl", "step-0", "step-1", "MODEL_CARD.md"
        }  # fmt: skip
    assert biggest.colours == biggest.predict(np.zeros((40, 40, 3), np.uint8)).colours == "voc", "the given model's"
    assert run("report", tmp_path / "biggest", "--out", tmp_path / "report.html") == 0
    assert "<h1>bigger + moon</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert run("eval", tmp_path / "biggest") == 0
    assert "bigger + moon: mIoU" in capsys.readouterr().out
    assert Run.read(tmp_path / "bigger").title == "4 classes + ring, flower", "of a model that lies nowhere"


def test_the_command_says_before_and_after_and_writes_a_card(
    tiny_run: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = folder("new", "ring"), folder("old", "Disc ", "square", "RING")
    assert run("extend", tiny_run, "--data", new, "--validation", old, "--out", tmp_path / "out", *DOTTED) == 0
    shown = capsys.readouterr().out
    assert "4 classes + ring: mib+ucd on 8 images, 2 iterations (1 epochs), batch 4, crops of 32" in shown
    assert "mean of 2 of 4 old classes" in shown
    assert "step 1 scored: mIoU new" in shown
    assert "all" not in shown.split("step 1 scored: ")[1].split("\n")[0], "two classes are measured by no image"
    assert "No validation image labels triangle, cross" in shown
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["scored_as"] == "full (whole images), each class on images that label it"
    for step in result["steps"]:
        assert step["iou"]["background"] is None  # in no image are all classes labelled: background may be any of them
        assert step["iou"]["disc"] is not None
        assert step["iou"]["triangle"] is None  # not labelled anywhere, so never judged
    assert "ring" not in result["steps"][0]["iou"]
    measured = {name for name, value in result["steps"][1]["miou"].items() if value is not None}
    assert measured == {"new"}
    assert (result["average_miou"], result["average_miou_with_background"]) == (None, None)
    assert run("eval", tmp_path / "out", "--out", tmp_path / "again.json") == 0
    assert json.loads((tmp_path / "again.json").read_text())["steps"] == result["steps"]
    assert run("report", tmp_path / "out", "--csv", tmp_path / "scores.csv", "--out", tmp_path / "report.html") == 0
    assert "by the conventions of the literature" not in capsys.readouterr().out, "no paper measures some classes only"
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text(encoding="utf-8")
    for text in ("| 1 | ring | mib+ucd | new | 8 |", "trained elsewhere", "incseg predict", "Before and after"):
        assert text in card
    said = json.loads(card.split("```json\n")[1].split("```")[0])
    assert said["classes"][-1] == "ring"
    assert said["history"][-1]["training_images"] == 8


def test_killed_it_goes_on_to_the_same_model(
    tiny_model: Model, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = folder("new", "ring")
    settings = {**QUICK, "optim": {"epochs": 3, "batch_size": 4}}
    incseg.extend(tiny_model, new, tmp_path / "whole", settings=settings)
    train_on = Iterations.train_on

    def killed(self: Iterations, run: Any, batch: Any, iteration: int) -> Any:
        if iteration == 4:
            raise KeyboardInterrupt
        return train_on(self, run, batch, iteration)

    monkeypatch.setattr(Iterations, "train_on", killed)
    with pytest.raises(KeyboardInterrupt):
        incseg.extend(tiny_model, new, tmp_path / "cut", settings=settings)
    monkeypatch.setattr(Iterations, "train_on", train_on)
    incseg.extend(tiny_model, new, tmp_path / "cut", settings=settings)
    one, two = (load_file(tmp_path / name / "step-1" / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert describe_model(tmp_path / "cut" / "step-1" / "model.safetensors").history[-1]["new_classes"] == ["ring"]


def test_each_class_is_judged_only_where_it_is_labelled(tiny_model: Model, folder: Folder) -> None:
    """A network that calls everything 'disc' is wrong about disc where disc is labelled, and only there."""
    data = DataConfig(known=tiny_model.classes, validation=folder("old", "disc", "ring"))
    extension = Extension(open_source("folder", folder("new", "ring")), data)
    step = extension.steps[1]

    class SaysDisc:
        mean, architecture = torch.zeros(1), Architecture()

        def eval(self) -> None: ...

        def segment(self, images: torch.Tensor) -> torch.Tensor:
            logits = torch.zeros(len(images), step.num_classes, *images.shape[-2:])
            logits[:, 1] = 1
            return logits

    total = torch.zeros(step.num_classes, step.num_classes, dtype=torch.int64)
    for images in extension.scored_images(step):
        loader = [[stack([images[i]])] for i in range(len(images))]
        total += score(SaysDisc(), loader, images.counted_as(step.num_classes), torch.device("cpu"))  # type: ignore[arg-type]
    square = 16 * 8
    in_old, in_new = 10, 2  # images of the validation folder, and those that the new folder holds out
    assert total[1, 1] == in_old * square  # true discs
    assert total[5, 1] == in_old * square  # rings called disc, where both are labelled
    assert total[5, 0] == in_new * square  # rings missed, where disc is not labelled
    assert total[:, [2, 3, 4, 5]].sum() == 0
    assert total[[2, 3, 4]].sum() == 0


def test_a_closed_form_follows_the_rules_of_the_statistics_it_adds_to(tiny_model: Model, folder: Folder) -> None:
    new = folder("new", "ring")
    source, segmenter = open_source("folder", new), tiny_model.segmenter
    statistics = Statistics.empty(feature_layout(segmenter, 5, width=64), torch.device("cpu")).with_classes(
        torch.ones(5)
    )
    given = replace(tiny_model, memory=as_memory(statistics, Fit(balance=0.1, mirrored=True), segmenter))

    def rules(method: str, **own: Any) -> dict[str, Any]:
        return dict(choose_settings(given, source, new, method, 1, None, {method: own}).settings.get("analytic", {}))

    assert rules("analytic") == asdict(Fit(balance=0.1, mirrored=True))
    assert rules("analytic", balance=0.5) == asdict(Fit(balance=0.5, mirrored=True))
    assert rules("analytic", width=64, context=None)["width"] == 64
    for name, value in (("width", 128), ("stride", 16), ("context", 31), ("stages", 3)):
        with pytest.raises(InputError, match=f"--analytic.{name} {value} is not possible here: .* were gathered with"):
            rules("analytic", **{name: value})
    assert rules("ft") == {}
    assert choose_settings(tiny_model, source, new, "analytic", 1, None, {}).settings == {}


def test_settings_follow_from_the_data_and_the_models_past(tiny_model: Model, folder: Folder) -> None:
    new = folder("new", "ring", images=50)
    source = open_source("folder", new)
    config = choose_settings(tiny_model, source, new, "mib+ucd", 1, None, {})
    assert (config.optim.batch_size, config.optim.epochs) == (8, 160)  # 5 iterations an epoch, 800 in all
    replaying = choose_settings(tiny_model, source, new, "mib+ucd", 1, None, {}, {"replay": new, "replayed_images": 3})
    assert replaying.optim == config.optim, "new images are seen as often where half of every batch is old"
    assert (replaying.data.replay, replaying.data.replayed_images) == (new, 3)
    assert config.data.crop_size == 96
    assert config.optim.incremental_learning_rate == pytest.approx(0.005)
    assert config.model.encoder == "test_resnet"
    assert config.settings == {"mib": {"trust_labels": True}}
    assert (config.optim.freeze_norm, config.optim.encoder_rate) == (True, 0.1)
    past = Model(tiny_model.segmenter, tiny_model.classes, [{"crop_size": 64, "learning_rate": 0.3}])
    config = choose_settings(past, source, new, "ft", 1, None, {"optim": {"batch_size": 1}, "ft": {}})
    assert (config.data.crop_size, config.optim.learning_rate) == (64, 0.3)
    assert config.optim.incremental_learning_rate == pytest.approx(0.3 * 400 / 1200)
    assert (config.optim.batch_size, config.optim.epochs) == (1, 30)


def test_an_extension_reduces_images_as_the_model_remembers(tiny_model: Model, folder: Folder) -> None:
    new = folder("new", "ring")
    source = open_source("folder", new)
    assert choose_settings(tiny_model, source, new, "ft", 1, None, {}).data.longest_side is None
    limited = tiny_model.limited_to(96)
    assert tiny_model.segmenter.architecture.longest_side is None
    assert choose_settings(limited, source, new, "ft", 1, None, {}).data.longest_side == 96
    chosen = choose_settings(limited, source, new, "ft", 1, None, {"data": {"longest_side": 64}})
    assert chosen.data.longest_side == 64


def test_a_method_with_memory_goes_on_from_its_own_run(
    quick_config: Callable[..., Any], folder: Folder, tmp_path: Path
) -> None:
    from incseg.engine.assembly import train

    train(quick_config("ewc", task="offline", optim={"epochs": 1, "batch_size": 8}), tmp_path / "run")
    new = folder("new", "ring")
    extended = incseg.extend(tmp_path / "run", new, tmp_path / "more", method="ewc", settings=QUICK)
    assert [record["method"] for record in extended.history] == ["ewc", "ewc"]
    with pytest.raises(InputError, match="'pi' continues from what it remembers"):
        incseg.extend(tmp_path / "run", new, tmp_path / "other", method="pi", settings=QUICK)
    alone = open_model(tmp_path / "run").save(tmp_path / "alone.safetensors")
    with pytest.raises(InputError, match="'ewc' continues from what it remembers"):
        incseg.extend(alone, new, tmp_path / "other", method="ewc", settings=QUICK)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("classes", "arguments", "message"),
    [
        ([" DISC"], [], "the model already knows all classes of new ( DISC): there is none to add".replace("( ", "(")),
        (["ring", "Ring "], [], "which are one name in another form"),
        (["ring"], ["--method", "joint"], "'joint' trains on images of earlier steps"),
        (["ring"], ["--method", "emseg"], "'emseg' trains on images of earlier steps"),
        (["ring"], ["--method", "mbi"], "Did you mean 'mib'?"),
        (["ring"], ["--model.encoder", "resnet18"], "--model cannot be set here: the network is the given model's"),
        (["ring"], ["--data.root", "x"], "--data.root cannot be set here"),
        (["ring"], ["--data.class-order", "ring"], "--data.class-order cannot be set here"),
        (["ring"], ["--data.splits", "x"], "--data.splits cannot be set here: an extension is one step"),
        (["ring"], ["--data.scoring", "paper"], "--data.scoring cannot be set here: an extension is scored in one way"),
        (["ring"], ["--data.score-on", "all"], "--data.score-on cannot be set here"),
        (["ring"], ["--data.scored-void", "background"], "--data.scored-void cannot be set here"),
        (["ring"], ["--data.future", "ignore"], "--data.future cannot be set here"),
        (["ring"], ["--data.background", "ignore"], "--data.background cannot be set here"),
        (["ring"], ["--optim.epoch", "3"], "no setting 'optim.epoch'"),
        (["ring"], ["--optim.batch-size", "many"], "optim.batch_size cannot be 'many'"),
        (["ring", "unseen"], [], "shows 'unseen'"),
        (["ring"], ["--validation", "/nowhere"], "--validation /nowhere is not a folder"),
    ],
)
def test_what_cannot_be_learnt_is_named(
    classes: list[str], arguments: list[str], message: str, tiny_run: Path, folder: Folder, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    new = folder("new", *classes, ids=1)
    assert run("extend", tiny_run, "--data", new, "--out", tmp_path / "out", *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


def test_a_folder_begun_with_another_model_and_unknown_validation_classes(
    tiny_run: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, other = folder("new", "ring"), folder("other", "dusc")
    assert run("extend", tiny_run, "--data", new, "--validation", other, "--out", tmp_path / "out") == 2
    assert "names 'dusc' and no class that the extended model knows" in (error := capsys.readouterr().err)
    assert "Did you mean 'disc'?" in error
    assert run("extend", tiny_run, "--data", new, "--out", tmp_path / "out", *DOTTED) == 0
    first = open_model(tiny_run)
    with torch.no_grad():
        first.segmenter.trained_head.heads[0].bias.add_(1)  # type: ignore[operator]
    first.save(tmp_path / "changed.safetensors")
    arguments: list[str | Path] = ["--data", new, "--out", tmp_path / "out", *DOTTED]
    assert run("extend", tmp_path / "changed.safetensors", *arguments) == 2
    assert "was begun with another model" in capsys.readouterr().err


def test_a_model_with_statistics_learns_in_closed_form(
    solved_base: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = folder("new", "ring")
    assert run("extend", solved_base, "--data", new, "--out", tmp_path / "out", "--data.workers", "0") == 0
    shown = capsys.readouterr().out
    assert "carries statistics of its training images, so the new classes are added in closed form" in shown
    assert "To train instead: --method mib+ucd" in shown
    assert "4 classes + ring: analytic, one pass over 8 images, no training" in shown
    assert "has no effect" not in shown
    assert "epochs" not in shown
    before, given = (load_file(path / "step-0" / "model.safetensors") for path in (tmp_path / "out", solved_base))
    assert before.keys() == given.keys(), "before is the given model as it is, with its trained head"
    assert all(torch.equal(before[name], given[name]) for name in given)
    assert run("extend", solved_base, "--data", new, "--out", tmp_path / "again", *DOTTED) == 0
    assert "--optim.… has no effect here: the step is solved, not trained." in capsys.readouterr().out
    assert run("extend", solved_base, "--data", new, "--out", tmp_path / "trained", "--method", "ft", *DOTTED) == 0
    assert "closed form" not in capsys.readouterr().out
    assert open_model(tmp_path / "trained").segmenter.architecture.closed_form is None


def test_a_model_keeps_its_encoder_as_it_was_before_training_for_heads_that_are_solved(
    solved_base: Path, folder: Folder, quick_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    before = load_file(solved_base.parent / "encoder.safetensors")
    new, settings = folder("new", "ring"), {"data": {"workers": 0}, "engine": {"accelerator": "cpu", "pictures": 0}}
    solved = incseg.extend(solved_base, new, tmp_path / "solved", settings=settings)
    for model in (open_model(solved_base), solved):
        assert model.segmenter.original is not None
        kept = model.segmenter.original.state_dict()
        assert all(torch.equal(kept[name], value.half().to(value.dtype)) for name, value in before.items())
    assert solved.segmenter.architecture.closed_form is not None
    assert solved.segmenter.architecture.closed_form.original == 2
    weight = "model.conv1.0.weight"
    assert not torch.allclose(solved.segmenter.encoder.state_dict()[weight], before[weight]), "this one was trained"
    trained = incseg.extend(solved_base, new, tmp_path / "trained", method="ft", settings=QUICK)
    assert trained.segmenter.original is None, "training moves what it would stand beside"
    plain = quick_config("ft", task="offline", optim={"epochs": 1}, engine={"original_encoder": False, "pictures": 0})
    train(plain, tmp_path / "plain")
    assert open_model(tmp_path / "plain").segmenter.original is None


def test_statistics_of_a_model_with_its_original_encoder_fit_no_model_without(solved_base: Path) -> None:
    model = open_model(solved_base)
    model.segmenter.keep_original(None)
    with pytest.raises(InputError, match="they belong to another model"):
        model.statistics()


def test_a_chain_of_extensions_in_closed_form_also_after_moving(
    solved_base: Path, folder: Folder, tmp_path: Path
) -> None:
    settings = {"data": {"workers": 0}, "engine": {"accelerator": "cpu", "pictures": 0}}
    incseg.extend(solved_base, folder("new", "ring"), tmp_path / "one", settings=settings)
    two = incseg.extend(tmp_path / "one", folder("more", "moon"), tmp_path / "two", settings=settings)
    (tmp_path / "two").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "one")
    three = incseg.extend(tmp_path / "moved", folder("most", "frame"), tmp_path / "three", settings=settings)
    assert three.classes == (*two.classes, "frame") == (*open_model(solved_base).classes, "ring", "moon", "frame")
    assert three.segmenter.classifier.head_sizes == [5, 1, 1, 1]
    assert [record["method"] for record in three.history] == ["ft", "analytic", "analytic", "analytic"]
    again = incseg.extend(tmp_path / "moved", tmp_path / "most", tmp_path / "three", settings=settings)
    assert again.classes == three.classes  # the same call finds it finished


def test_a_head_in_closed_form_cannot_be_trained(
    solved_base: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"data": {"workers": 0}, "engine": {"accelerator": "cpu", "pictures": 0}}
    incseg.extend(solved_base, folder("new", "ring"), tmp_path / "one", settings=settings)
    capsys.readouterr()
    more = folder("more", "moon")
    assert run("extend", tmp_path / "one", "--data", more, "--method", "mib", "--out", tmp_path / "two", *DOTTED) == 2
    shown = capsys.readouterr()
    assert "the head of this model was solved in closed form and cannot be trained" in shown.err
    assert not shown.out
    assert not (tmp_path / "two").exists()


def test_without_statistics_it_trains_and_says_what_would_be_faster(
    tiny_run: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = folder("new", "ring")
    assert run("extend", tiny_run, "--data", new, "--out", tmp_path / "out", *DOTTED) == 0
    shown = capsys.readouterr().out
    assert "carries no statistics of its training images, so it is trained (mib+ucd)" in shown
    assert "'incseg statistics MODEL --data DIR'" in shown
    assert run("extend", tiny_run, "--data", new, "--out", tmp_path / "other", "--method", "analytic") == 2
    assert "this model has none: gather them with 'incseg statistics" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("head", "method"), [("sigmoid", "ucd"), ("branched", "ssul")])
def test_a_model_with_another_head_is_trained_by_a_method_that_can(
    head: str, method: str, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segmenter = decided(Segmenter(SMALL.model_copy(update={"head": head}), [3, 2]))
    given, new = Model(segmenter, CLASSES).save(tmp_path / "given.safetensors"), folder("new", "ring")
    assert run("extend", given, "--data", new, "--out", tmp_path / "out", *DOTTED) == 0
    assert f"so it is trained ({method})" in capsys.readouterr().out
    assert open_model(tmp_path / "out").segmenter.classifier.kind == head
    assert open_model(tmp_path / "out").segmenter.classifier.head_sizes == [3, 2, 1]
    assert run("extend", given, "--data", new, "--method", "plop", "--out", tmp_path / "other", *DOTTED) == 2
    assert f"'plop' needs a softmax head, and this network has a {head} head" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_few_images_make_small_batches_so_that_an_epoch_has_several(tiny_model: Model, folder: Folder) -> None:
    new = folder("new", "ring", images=12)
    config = choose_settings(tiny_model, open_source("folder", new), new, "mib+ucd", 1, None, {})
    assert (config.optim.batch_size, config.optim.epochs) == (2, 160)  # 10 images: 5 iterations an epoch, 800 in all


@pytest.mark.parametrize("place", ["new", "labelled"])
def test_an_empty_list_of_validation_images_is_refused(
    place: str, tiny_run: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, labelled = folder("new", "ring"), folder("labelled", "disc")
    (tmp_path / place / "val.txt").write_text("")
    validation: list[str | Path] = ["--validation", labelled] if place == "labelled" else []
    assert run("extend", tiny_run, "--data", new, "--out", tmp_path / "out", *validation) == 2
    expected = {"new": "new has no validation image", "labelled": "has an empty val.txt"}
    assert expected[place] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_classes_that_only_the_validation_folder_knows_are_not_scored(tiny_model: Model, folder: Folder) -> None:
    data = DataConfig(root=folder("new", "ring"), known=tiny_model.classes, validation=folder("all", "disc", "kite"))
    said: list[str] = []
    extension = build_curriculum(Protocol.parse("folder/4-1"), data, said.append)
    assert said == ["kite of all is not known to the extended model: pixels labelled so are not scored."]
    labels = extension.scored_images(extension.steps[1])[0][0].labels
    assert set(labels.unique().tolist()) == {0, 1, 255}


def test_known_classes_in_the_new_folder_keep_their_place_and_are_learnt(
    tiny_model: Model, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = folder("new", "ring", "Disc")
    extension = Extension(open_source("folder", new), DataConfig(known=tiny_model.classes))
    assert extension.classes == (*tiny_model.classes, "ring")
    step = extension.steps[1]
    assert extension.training_table(step)[:3].tolist() == [0, 5, 1]
    assert set(extension.shown(step).values()) == {frozenset({5})}
    extended = incseg.extend(tiny_model, new, tmp_path / "out", settings=QUICK)
    assert extended.classes == (*tiny_model.classes, "ring")
    assert "Disc: known to the model, and learnt further where it is labelled." in capsys.readouterr().out


def test_in_closed_form_background_is_background_if_the_folder_is_said_to_label_everything(
    solved_base: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = open_model(solved_base)
    everything = folder("everything", *given.classes[1:], "ring", ids=2)  # and two of the classes are shown
    shown = Image.open(everything / "masks" / "0.png")
    mask = np.array(shown)
    mask[24:, 20:] = len(given.classes)  # the ring
    Image.fromarray(mask).save(everything / "masks" / "0.png")
    (everything / "train.txt").write_text("0\n1\n2")
    (everything / "val.txt").write_text("3")
    common: list[str | Path] = ["--data", everything, *DOTTED]
    assert run("extend", solved_base, *common, "--out", tmp_path / "cautious") == 0
    assert "say so with --data.complete true" in capsys.readouterr().out
    assert run("extend", solved_base, *common, "--out", tmp_path / "certain", "--data.complete", "true") == 0
    assert "Background of these images is taken as it is labelled" in capsys.readouterr().out
    before, certain, cautious = (
        required_statistics(open_model(path))[0].cross
        for path in (solved_base, tmp_path / "certain", tmp_path / "cautious")
    )
    expected = torch.zeros(len(before))
    features = RandomFeatures(required_statistics(given)[0].layout)
    cell = features.layout.stride
    for index in range(3):
        image, mask = (np.array(Image.open(everything / kind / f"{index}.png")) for kind in ("images", "masks"))
        pixels = padded_images(torch.tensor(image).permute(2, 0, 1)[None])
        with torch.no_grad():
            cells = features(*given.segmenter.features(pixels))[0]
        for row, column in itertools.product(*(range(cell // 2, side, cell) for side in mask.shape)):
            if mask[row, column] == 0:
                expected += cells[row // cell, column // cell]
    added = certain[:, 0] - before[:, 0]
    torch.testing.assert_close((added / added.norm()).float(), expected / expected.norm(), rtol=1e-4, atol=1e-5)
    assert not torch.equal(certain[:, 0], cautious[:, 0]), "a head that is unsure gives less to the background"


def test_a_folder_is_not_taken_to_label_what_it_does_not_name(
    tiny_model: Model, folder: Folder, tmp_path: Path
) -> None:
    new = folder("new", "ring", *tiny_model.classes[1:])
    certain = Extension(open_source("folder", new), DataConfig(known=tiny_model.classes, complete=True))
    assert certain.steps[1].complete
    with pytest.raises(InputError, match=r"does not name square, triangle, cross: name and label them too"):
        Extension(
            open_source("folder", folder("few", "ring", "disc")), DataConfig(known=tiny_model.classes, complete=True)
        )
    with pytest.raises(InputError, match=r"--data.complete is for 'incseg extend'"):
        check_run(RunConfig(protocol="shapes/4-2", data=DataConfig(complete=True)), tmp_path / "run")


def test_background_is_scored_where_everything_is_labelled_and_on_the_same_pixels(
    tiny_model: Model, folder: Folder
) -> None:
    complete = folder("complete", *tiny_model.classes[1:], "ring")
    data = DataConfig(known=tiny_model.classes, validation=complete)
    extension = Extension(open_source("folder", folder("new", "ring")), data)
    background = []
    for step in extension.steps:
        *others, own = extension.scored_images(step)
        assert all(images.labels_all(step.num_classes) for images in others)
        assert not own.labels_all(step.num_classes)
        background.append(sum(int((images[0].labels == 0).sum()) for images in others))
    assert background[0] == background[1]  # the new class is nothing to be scored before it is learnt


def test_a_class_that_no_validation_image_shows_is_not_measured(tiny_model: Model, folder: Folder) -> None:
    new = folder("new", "ring", "flower")
    (new / "val.txt").write_text("0\n1")
    for name in "01":
        file = new / "masks" / f"{name}.png"
        ids = np.array(Image.open(file))
        Image.fromarray(np.where(ids == 2, 0, ids).astype(np.uint8)).save(file)
    extension = Extension(open_source("folder", new), DataConfig(known=tiny_model.classes))
    step = extension.steps[1]
    assert extension.unlabelled(step) == {0, 1, 2, 3, 4, 6}
    counts = torch.ones(1, 2, step.num_classes, step.num_classes, dtype=torch.int64)
    entry = step_entry(step, extension.classes, 8, counts, unlabelled=extension.unlabelled(step))
    assert [name for name, iou in entry["iou"].items() if iou is not None] == ["ring"]
    assert entry["miou"]["new"] is None


def test_what_a_person_may_have_mistaken_is_said(
    solved_base: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, out = folder("new", "squares", "ring"), tmp_path / "out"
    assert run("extend", solved_base, "--data", new, "--validation", new, "--out", out, *DOTTED) == 0
    said = capsys.readouterr().out
    assert "'squares' is a new class; 'square', which the model knows, is written otherwise." in said
    assert "'ring' is a new class" not in said
    assert "new is scored as a whole, and most of its images are learnt from: scores will be too high." in said
    other = folder("more", "moon", "flower", images=20)
    assert run("extend", solved_base, "--data", other, "--out", out, *DOTTED, "--optim.batch-size", "2") == 2
    refused = capsys.readouterr().err.replace("\n", " ")
    assert f"holds another run (its data is {new}, and here {other}; " in refused
    second = tmp_path / "second"
    assert run("extend", solved_base, "--data", folder("others", "squares", "ring"), "--out", second, *DOTTED) == 0
    assert run("report", out, second, "--out", tmp_path / "report.html") == 0
    compared = capsys.readouterr().out
    assert "analytic (out)" in compared
    assert "analytic (second)" in compared


@pytest.mark.parametrize("config", ["protocol: folder/offline\nmethod: gone\n", "method: [\n", "unheard: 1\n"])
def test_the_method_and_settings_of_the_old_run_are_not_needed(
    config: str, tiny_run: Path, folder: Folder, tmp_path: Path
) -> None:
    (tiny_run / "config.yaml").write_text(config)
    extended = incseg.extend(tiny_run, folder("new", "ring"), tmp_path / "out", method="ft", settings=QUICK)
    assert extended.classes[-1] == "ring"


def test_what_ends_near_zero_is_named_in_terminal_and_report(tiny_run: Path, folder: Folder, tmp_path: Path) -> None:
    new = folder("new", "ring")
    assert run("extend", tiny_run, "--data", new, "--out", tmp_path / "out", *DOTTED) == 0
    path = tmp_path / "out" / "result.json"
    result = read_json(path)
    result["steps"][-1]["iou"]["ring"] = 0.001
    result["steps"][-1]["confusion"][0] = [1, 99, 0, 0, 0, 0]
    write_json(path, result)
    warning = "Hardly recognised after step 1: background, ring (below 2%)."
    table = before_and_after(tmp_path / "out")
    assert warning in table.note
    assert table.rows[1] == ["background, recall", "–", "1.0"]
    assert run("report", tmp_path / "out", "--out", tmp_path / "report.html") == 0
    assert warning in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["mib+ucd", "emseg"])
def test_half_of_every_batch_is_old_where_old_images_are_left(
    method: str,
    tiny_model: Model,
    folder: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new, old = folder("new", "ring"), folder("old", "disc", "square")
    seen, train_on = [], Iterations.train_on

    def watched(self: Iterations, run: Any, batch: Any, iteration: int) -> Any:
        seen.append(batch)
        return train_on(self, run, batch, iteration)

    monkeypatch.setattr(Iterations, "train_on", watched)
    bigger = incseg.extend(
        tiny_model, new, tmp_path / "out", method=method, replay=old, memory=3, settings=QUICK, seed=1
    )
    assert bigger.classes[-1] == "ring"
    assert "4 iterations (1 epochs), batch 4, half of it old images" in capsys.readouterr().out
    assert len(seen) == 4
    for batch in seen:
        assert (batch.replayed > 0).tolist() == [False, False, True, True]
        uncertain = {0} if method == "emseg" else set()  # emseg completes labels by itself
        assert set(batch.labels[2:].unique().tolist()) <= {1, 2, 255} | uncertain
        assert set(batch.labels[:2].unique().tolist()) <= {0, 5, 255}
    with pytest.raises(InputError, match="another run"):  # other images are another experiment
        incseg.extend(tiny_model, new, tmp_path / "out", method=method, replay=old, memory=4, settings=QUICK, seed=1)
    shutil.rmtree(old)
    assert run("eval", tmp_path / "out") == 0, "old images are for the training only"


def test_old_images_in_closed_form(
    solved_base: Path, tiny_folder: Path, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are in the statistics already; a model without any gets its own from them, exactly as from a folder."""
    new = folder("new", "ring")
    words = ("extend", solved_base, "--data", new, "--replay", tiny_folder)
    assert run(*words, "--out", tmp_path / "with", *DOTTED) == 0
    assert "would count these twice" in capsys.readouterr().out
    assert run("extend", solved_base, "--data", new, "--out", tmp_path / "without", *DOTTED) == 0
    given = incseg.load(solved_base, device="cpu")
    bare = replace(given, path=None, memory={})
    incseg.extend(bare, new, tmp_path / "gathered", replay=tiny_folder, method="analytic", settings=QUICK)
    heads = [incseg.load(tmp_path / name).segmenter.state_dict() for name in ("with", "without", "gathered")]
    for name, tensor in heads[0].items():
        assert torch.equal(tensor, heads[1][name]), "old images change nothing"
        assert torch.allclose(tensor, heads[2][name], atol=1e-4), "the folder holds the images of the training"
    capsys.readouterr()


def test_old_images_that_cannot_be_used_are_refused(
    tiny_model: Model, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = folder("new", "ring"), folder("old", "disc")
    path = tiny_model.save(tmp_path / "model.safetensors")
    for words, message in [
        (("--memory", "5"), "--replay DIR"),
        (("--replay", old, "--memory", "0"), "1 or more"),
        (("--replay", new), "names no class that the model knows"),
        (("--replay", old, "--method", "analytic"), "does not name square, triangle, cross"),
        (("--method", "emseg"), "give some with --replay DIR"),
        (("--replay", old, "--method", "joint"), "use another method"),
        (("--data.replay", old), "--replay"),
    ]:
        assert run("extend", path, "--data", new, "--out", tmp_path / "out", *words) == 2, words
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
