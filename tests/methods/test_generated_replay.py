from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from incseg.batch import Batch, Outputs, View, upsample
from incseg.config import RunConfig
from incseg.datasets.file_split import image_tensor
from incseg.datasets.shapes import pictures_of
from incseg.engine.assembly import build, launch, train
from incseg.errors import InputError
from incseg.losses import cross_entropy
from incseg.methods.generated_replay import HelperDecoder, InpaintedCrossEntropy, ReplayedPictures
from incseg.models import Architecture, Segmenter
from incseg.protocol import steps

MakeConfig = Callable[..., RunConfig]
PICTURES = {"generator": "incseg.datasets.shapes:pictures_of", "per_class": 3}


@pytest.fixture
def recalling(quick_config: MakeConfig, tmp_path: Path) -> MakeConfig:
    """Three steps, so that a picture may be labelled by step 0's decoder or by a helper."""

    def make(**overrides: object) -> RunConfig:
        settings = {"recall": {**PICTURES, "images": tmp_path / "pictures"}}
        return quick_config(**{"method": "recall", "task": "2-1-1", "settings": settings, **overrides})

    return make


def test_pictures_take_turns_and_are_labelled_by_whom_knew_them(recalling: MakeConfig, tmp_path: Path) -> None:
    config = recalling()
    trainer = build(config, tmp_path / "run", launch(config))
    part = next(p for p in trainer.method.parts if isinstance(p, ReplayedPictures))
    for step in trainer.curriculum.steps[:2]:
        step_run = trainer.prepare(step)
        trainer.iterations.train_on(step_run, next(iter(trainer.data.batches(step, step_run.images, epochs=1))), 0)
        trainer.method.end(step_run.context)
    assert not hasattr(trainer.student, "helper")
    assert part.memory["0/channels"].tolist() == [0, 1, 2]
    assert part.memory["1/channels"].tolist() == [0, 3]

    last = trainer.curriculum.steps[2]
    step_run = trainer.prepare(last)
    assert not any(p.requires_grad for p in trainer.student.encoder.parameters())
    assert not trainer.student.encoder.training
    own, recalled = list(trainer.data.batches(last, step_run.images, epochs=1))[:2]
    assert own.replayed is not None
    assert recalled.replayed is not None
    assert not own.replayed.any()
    assert set(recalled.replayed.tolist()) <= {1, 2, 3}
    assert (recalled.labels == 255).all()

    outputs = trainer.student(recalled.images, with_stages=True)
    assert step_run.context.teacher is not None
    view = trainer.method.view(recalled, outputs, step_run.context.teacher(recalled.images, with_stages=True), last)
    for target, channel in zip(view.targets, recalled.replayed.tolist(), strict=True):
        assert set(target.unique().tolist()) <= ({0, 3} if channel == 3 else {0, 1, 2})


def test_background_is_what_the_teacher_sees_there() -> None:
    step = steps("2-2", 4)[1]
    labels = torch.tensor([[[0, 0, 3, 255]]])
    teacher = torch.zeros(1, 3, 1, 4)
    teacher[0, 2, 0, 0] = teacher[0, 1, 0, 2] = teacher[0, 1, 0, 3] = 1
    outputs = torch.zeros(1, 5, 1, 4)
    view = View(Batch(torch.zeros(1, 3, 1, 4), labels), _outputs(outputs), _outputs(teacher), step)
    targets = InpaintedCrossEntropy().relabel(view)
    assert targets is not None
    assert targets.tolist() == [[[2, 0, 3, 255]]]
    complete = replace(view, step=replace(step, labelled_old=step.old, complete=True))
    assert InpaintedCrossEntropy().relabel(complete) is None, "background is what the labels say"


def test_a_helper_learns_its_steps_classes_by_their_own_numbers() -> None:
    torch.manual_seed(0)
    step = steps("2-1-1", 4)[1]
    student = Segmenter(Architecture(encoder="test_resnet", decoder="deeplabv3plus"), [3, 1]).eval()
    part = ReplayedPictures(folder=Path("pictures"))
    part._student = student
    helper = HelperDecoder(student, [2]).eval()
    student.add_module("helper", helper)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    labels = torch.zeros(2, 64, 64, dtype=torch.int64)
    labels[:, :20], labels[:, 20:24] = 3, 255
    outputs = student(images, with_stages=True)
    batch = Batch(images, labels, torch.tensor([0, 2]))  # the second image is replayed: not the helper's business
    logits = helper(student.normalise(images), outputs.stages, labels)
    expected = cross_entropy(logits[:1], torch.where(labels == 3, 1, labels)[:1])
    torch.testing.assert_close(part.losses(View(batch, outputs, None, step))["helper"], expected)
    labels[:, 40:] = 2  # where labels are complete, old classes are labelled too; a helper does not know them
    torch.testing.assert_close(part.losses(View(batch, outputs, None, step))["helper"], expected)
    alone = part.losses(View(Batch(images, labels, torch.tensor([1, 2])), outputs, None, step))["helper"]
    assert alone.item() == 0
    assert alone.requires_grad


def test_the_first_helper_is_the_network_itself_however_it_came_to_be() -> None:
    """A model that is extended may have several heads, and wide ones."""
    torch.manual_seed(0)
    architecture = Architecture(encoder="test_resnet", decoder="deeplabv3plus", classifier_kernel=3, align_corners=True)
    student = Segmenter(architecture, [3, 1]).eval()
    part = ReplayedPictures(folder=Path("pictures"))
    part._save_helper(0, (1, 2, 3), student)
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    outputs = student(images, with_stages=True)
    answer = part._load_helper(0, student).eval()(student.normalise(images), outputs.stages, images)
    torch.testing.assert_close(answer, upsample(outputs, images))


def test_generated_pictures_are_kept_and_made_once(recalling: MakeConfig, tmp_path: Path) -> None:
    train(recalling(), tmp_path / "run")
    files = sorted((tmp_path / "pictures").rglob("*.png"))
    assert [f"{file.parent.name}/{file.name}" for file in files[:4]] == [
        "disc/00000.png", "disc/00001.png", "disc/00002.png", "square/00000.png",
    ]  # fmt: skip
    assert len(files) == 9  # the classes of the last step are nobody's past
    assert torch.equal(image_tensor(files[0]), next(pictures_of("disc")))


def test_interrupted_it_ends_as_if_nothing_had_happened(recalling: MakeConfig, tmp_path: Path) -> None:
    engine = {"accelerator": "cpu", "log_every": 1, "pictures": 0, "checkpoint_every": 1}
    train(recalling(engine=engine), tmp_path / "whole")
    trainer = build(recalling(engine=engine), tmp_path / "cut", launch(recalling(engine=engine)))
    with trainer.journal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(trainer.journal), "log", _killed_at("step 1", 3))
        with pytest.raises(KeyboardInterrupt):
            trainer.run()
    train(recalling(engine=engine), tmp_path / "cut")
    for file in ("result.json", "step-2/model.safetensors", "step-2/memory.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()


@pytest.mark.parametrize("method", ["ewc+recall", "recall+pi", "pi+recall", "rw+recall", "recall+rw"])
def test_importance_does_not_watch_the_helper(method: str, recalling: MakeConfig, tmp_path: Path) -> None:
    config = recalling(method=method, optim={"epochs": 1, "batch_size": 4, "incremental_learning_rate": 0.02})
    train(config, tmp_path / "run")
    remembered = load_file(tmp_path / "run" / "step-1" / "memory.safetensors")
    assert any("/classifier.heads.1." in name for name in remembered)
    assert not any("/helper." in name for name in remembered)


def test_without_pictures_it_says_so_and_inpaints(quick_config: MakeConfig, tmp_path: Path) -> None:
    said: list[str] = []
    trainer = build(quick_config("recall"), tmp_path, launch(quick_config("recall")))
    assert not trainer.method.needs_stages
    trainer.journal.say = said.append  # type: ignore[method-assign,assignment]
    for step in trainer.curriculum.steps:
        assert trainer.prepare(step).images.replay is None
    assert said == ["recall: there are no pictures to replay (--recall.images DIR); only background is inpainted"]


def test_missing_pictures_are_refused_before_anything_is_learnt(quick_config: MakeConfig, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    for settings, sentence in (
        ({"images": pictures}, "is not a folder"),
        ({"generator": "incseg.datasets.shapes:pictures_of"}, "needs --recall.images"),
        ({"images": pictures, "generator": "incseg.datasets.shapes:nothing"}, "cannot be found"),
        ({"images": pictures, "generator": "incseg.datasets.shapes:CLASSES"}, "is not a function"),
    ):
        with pytest.raises(InputError, match=sentence):
            train(quick_config("recall", settings={"recall": settings}), tmp_path / "run")
    (pictures / "disk").mkdir(parents=True)
    with pytest.raises(InputError, match=r"pictures/disc holds no pictures.*Did you mean 'disk'"):
        train(quick_config("recall", settings={"recall": {"images": pictures}}), tmp_path / "run")
    Image.new("RGB", (8, 8)).save(pictures / "disk" / "1.png")
    (pictures / "disk").rename(pictures / "disc")
    (pictures / "square").mkdir()
    (pictures / "square" / "1.jpg").write_text("404 not found")
    with pytest.raises(InputError, match=r"square/1\.jpg cannot be read"):
        train(quick_config("recall", settings={"recall": {"images": pictures}}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_generator_shows_what_it_can_do_before_anything_is_learnt(recalling: MakeConfig, tmp_path: Path) -> None:
    build(recalling(), tmp_path / "run", launch(recalling()))
    made = sorted(str(file.relative_to(tmp_path / "pictures")) for file in (tmp_path / "pictures").rglob("*.png"))
    assert made == ["disc/00000.png", "square/00000.png", "triangle/00000.png"]
    (tmp_path / "pictures" / "square" / "00000.png").unlink()
    broken = {"recall": {**PICTURES, "generator": "math:sqrt", "images": tmp_path / "pictures"}}
    with pytest.raises(InputError, match=r"'math:sqrt' cannot make a picture of 'square' \(TypeError"):
        train(recalling(settings=broken), tmp_path / "run")


def _outputs(logits: torch.Tensor) -> Outputs:
    return Outputs(logits, logits, [])


def _killed_at(step: str, iteration: int) -> Callable[..., None]:
    def log(_: object, name: str, done: int, *__: object) -> None:
        if (name, done) == (step, iteration):
            raise KeyboardInterrupt

    return log
