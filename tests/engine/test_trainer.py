import copy
import json
import os
import pkgutil
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from incseg import losses
from incseg.batch import View
from incseg.config import RunConfig, to_yaml
from incseg.engine import checkpoint
from incseg.engine.assembly import build, launch, train
from incseg.engine.checkpoint import Checkpoint
from incseg.engine.first_step import first_step_identity
from incseg.engine.journal import Journal
from incseg.engine.rescore import rescore
from incseg.engine.trainer import Trainer
from incseg.errors import InputError, TrainingError
from incseg.loading import ScoredImages, whole_loader
from incseg.methods import Context, Part, method_names, parse, register_method
from incseg.methods.parsing import METHODS
from incseg.models import Architecture, Segmenter
from incseg.models.storage import describe_model, load_model
from incseg.run_folder import RunFolder, read_json
from incseg.upsampling import CoarseLogits, Scores

MakeConfig = Callable[..., RunConfig]
ALL = [*method_names(), "mib+ucd", "plop+ucd", "mib+sdr", "mib+ucd+ewf", "mib+pixel", "mib+segment"]
SOLVED = [method for method in ALL if parse(method).solves]  # trained at step 0 only


def bytes_of(run: Path, step: int = 1) -> tuple[bytes, bytes]:
    return (run / "result.json").read_bytes(), (run / f"step-{step}" / "model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def reference(quick_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an uninterrupted run of a method; trained once, when a test first asks for it."""

    @cache
    def run_of(method: str) -> Path:
        folder = tmp_path_factory.mktemp("reference")
        assert train(with_checkpoints(quick_config, method), folder) == read_json(folder / "result.json")
        return folder

    return run_of


def with_checkpoints(quick_config: MakeConfig, method: str) -> RunConfig:
    return quick_config(method, engine={"accelerator": "cpu", "log_every": 1, "pictures": 1, "checkpoint_every": 3})


# Tests of one method go to one process, where they share its reference.
def each_of(methods: Sequence[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("method", [pytest.param(m, marks=pytest.mark.xdist_group(m)) for m in methods])


@each_of(ALL)
def test_two_steps_leave_a_complete_run_folder(method: str, reference: Callable[[str], Path]) -> None:
    folder = reference(method)
    result = read_json(folder / "result.json")
    assert result["classes"] == ["background", "disc", "square", "triangle", "cross"]
    assert [step["new_classes"] for step in result["steps"]] == [["disc", "square"], ["triangle", "cross"]]
    for index in (0, 1):
        _, classes = load_model(folder / f"step-{index}" / "model.safetensors")
        assert len(classes) == 3 + 2 * index
        assert len(list((folder / f"step-{index}" / "predictions").glob("*.prediction.png"))) == 1
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    expected = {"segmentation", "learning_rate", "step", "iteration", "epoch"}
    expected |= {"distillation"} if "mib" in method else set()
    expected |= {"contrast"} if {"ucd", "cd", "pixel", "segment"} & set(method.split("+")) else set()
    assert {line["step"] for line in lines} == ({"step 0"} if method in SOLVED else {"step 0", "step 1"})
    for line in lines:
        if line["step"] == "step 1":
            assert expected <= set(line)
    assert (folder / "config.yaml").exists()
    assert list((folder / "tensorboard").iterdir())
    assert not (folder / "checkpoint.pt").exists()


@pytest.mark.xdist_group("mib")
def test_a_seed_repeats_and_another_differs(
    reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path
) -> None:
    for name, seed in (("again", 42), ("two", 2)):
        train(quick_config("mib", seed=seed), tmp_path / name)
    assert bytes_of(reference("mib")) == bytes_of(tmp_path / "again")
    assert bytes_of(reference("mib"))[1] != bytes_of(tmp_path / "two")[1]


class Killed(BaseException):
    pass


def train_with_interruptions(config: RunConfig, folder: Path, moments: Sequence[tuple[str, int]]) -> None:
    """A run that is killed at each of these steps and iterations in turn, and started again each time."""
    for step, iteration in moments:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "log", killed_at(step, iteration))
            with pytest.raises(Killed):
                train(config, folder)
    train(config, folder)


def killed_at(step: str, iteration: int) -> Callable[..., None]:
    original = Journal.log

    def log(self: Journal, name: str, done: int, *rest: Any) -> None:
        if (name, done) == (step, iteration):
            raise Killed
        original(self, name, done, *rest)

    return log


@each_of([method for method in ALL if method not in SOLVED])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(
    method: str, reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path
) -> None:
    """Between two checkpoints, before the first of a step, and when a step is all but done."""
    moments = [("step 1", 2), ("step 1", 6)]
    if method == "ft" or parse(method).first_step:  # else step 0 is that of ft
        moments.insert(0, ("step 0", 5))
    train_with_interruptions(with_checkpoints(quick_config, method), tmp_path, moments)
    assert bytes_of(tmp_path) == bytes_of(reference(method))
    assert (tmp_path / "metrics.jsonl").read_text() == (reference(method) / "metrics.jsonl").read_text()


def kill_at(patch: pytest.MonkeyPatch, where: str, call: int) -> None:
    """Let the call of a function with that number, from 1, be the last thing a run does."""
    module, _, name = where.rpartition(".")
    original, calls = pkgutil.resolve_name(where), count(1)

    def function(*arguments: Any, **named: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return original(*arguments, **named)

    patch.setattr(pkgutil.resolve_name(module), name, function)


def files_of(run: Path, steps: int = 2) -> list[bytes]:
    names = [f"step-{step}/{name}.safetensors" for step in range(steps) for name in ("model", "memory")]
    return [(run / name).read_bytes() for name in ("result.json", "metrics.jsonl", *names)]


# Where a solved step can be killed: among its images, and between the files that are left of it.
GATHERING = "incseg.models.closed_form.Statistics.add"
SAVING = (
    "incseg.engine.trainer.save_model",
    "incseg.engine.checkpoint.write_tensors",
    "incseg.engine.checkpoint.write_json",
)


# In the order in which a run comes to them, those of step 0 before those of step 1. Each attempt is killed later than
# the one before it; that which comes to the second gathering has finished step 0 on its way.
SAVED = [(where, 1) for where in SAVING]
MOMENTS = [(GATHERING, 1), *SAVED, (GATHERING, 2), *SAVED]


def killed_at_every(moments: Sequence[tuple[str, int]], config: RunConfig, folder: Path, **given: Any) -> None:
    for where, call in moments:
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, where, call)
            with pytest.raises(Killed):
                train(config, folder, **given)


@each_of(SOLVED)
def test_a_solved_run_that_was_killed_ends_as_if_nothing_had_happened(
    method: str, reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path
) -> None:
    config = with_checkpoints(quick_config, method)
    killed_at_every([("incseg.engine.trainer.Journal.log", 5), *MOMENTS], config, tmp_path)
    train(config, tmp_path)
    assert files_of(tmp_path) == files_of(reference(method))


@pytest.mark.xdist_group("analytic")
@pytest.mark.parametrize("moments", [[], MOMENTS])
def test_a_solved_run_can_begin_with_the_step_0_of_a_trained_one(
    moments: list[tuple[str, int]], reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path
) -> None:
    """Also one that was killed before or after it gave that step a head of its own."""
    config, trained = with_checkpoints(quick_config, "analytic"), reference("ft")
    killed_at_every(moments, config, tmp_path, first_step=trained)
    train(config, tmp_path, first_step=trained)
    assert files_of(tmp_path) == files_of(reference("analytic"))


@pytest.mark.xdist_group("analytic")
def test_a_shared_step_0_gets_the_head_of_this_runs_settings(
    reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path
) -> None:
    narrow = quick_config("analytic", settings={"analytic": {"width": 64, "balance": 1.0}})
    train(narrow, tmp_path / "own")
    train(narrow, tmp_path / "shared", first_step=reference("analytic"))
    assert bytes_of(tmp_path / "own") == bytes_of(tmp_path / "shared")
    with pytest.raises(InputError, match=r"step 0 of .* cannot be shared: 'analytic' solved its head in closed form"):
        train(quick_config("mib"), tmp_path / "mib", first_step=reference("analytic"))
    assert not (tmp_path / "mib").exists()


@pytest.mark.parametrize("method", ["dkd", "star"])
def test_a_method_that_prepares_later_steps_may_train_the_first_of_a_solved_run(
    method: str, quick_config: MakeConfig, tmp_path: Path
) -> None:
    own = quick_config(f"{method}+analytic")
    train(own, tmp_path / "own")
    train(quick_config(method), tmp_path / "trained")
    train(own, tmp_path / "shared", first_step=tmp_path / "trained")
    assert bytes_of(tmp_path / "own") == bytes_of(tmp_path / "shared")
    assert load_model(RunFolder(tmp_path / "own").model(1))[0].classifier.kind == "closed-form"


def test_a_sigmoid_head_is_trained_grown_and_left_for_a_solved_one(quick_config: MakeConfig, tmp_path: Path) -> None:
    base = quick_config().model.model_dump()
    sigmoid = {**base, "head": "sigmoid"}
    train(quick_config("ucd", model=sigmoid), tmp_path / "trained")
    train(quick_config("analytic", model=sigmoid), tmp_path / "solved", first_step=tmp_path / "trained")
    heads = {name: load_model(RunFolder(tmp_path / name).model(1))[0].classifier for name in ("trained", "solved")}
    assert {name: (head.kind, head.head_sizes) for name, head in heads.items()} == {
        "trained": ("sigmoid", [3, 2]),
        "solved": ("closed-form", [3, 2]),
    }
    read = read_json(tmp_path / "trained" / "result.json")
    assert rescore(tmp_path / "trained")["steps"][-1]["iou"] == read["steps"][-1]["iou"]
    for method, head, refusal in (
        ("mib", sigmoid, r"'mib' needs a softmax head, .* use analytic, .* ucd, or sums of these"),
        ("analytic", base, r"step 0 of .* cannot be shared: model\.head is sigmoid there and softmax here"),
    ):
        with pytest.raises(InputError, match=refusal):
            train(quick_config(method, model=head), tmp_path / "refused", first_step=tmp_path / "trained")
    assert not (tmp_path / "refused").exists()


def statistics_in(run: Path, step: int) -> set[str]:
    names = load_file(run / f"step-{step}" / "memory.safetensors")
    return {name.removeprefix("ClosedForm.") for name in names if name.startswith("ClosedForm.")}


STATISTICS = {"fit", "layout", "gram", "cross", "cells", "reference", "model"}


@pytest.mark.parametrize("method", ["ft", "joint"])
def test_statistics_for_later_extensions_change_nothing_else(
    method: str, quick_config: MakeConfig, tmp_path: Path
) -> None:
    engine = {"accelerator": "cpu", "pictures": 0}
    for name, wanted in (("with", True), ("without", False)):
        config = quick_config(method, task="offline", engine={**engine, "statistics": wanted})
        train(config, tmp_path / name)
    assert bytes_of(tmp_path / "with", 0) == bytes_of(tmp_path / "without", 0)
    assert statistics_in(tmp_path / "with", 0) == STATISTICS
    assert statistics_in(tmp_path / "without", 0) == set()


def test_statistics_are_kept_where_the_last_step_labels_every_class(quick_config: MakeConfig, tmp_path: Path) -> None:
    for method, kept in (("ft", set()), ("joint", STATISTICS)):
        train(quick_config(method), tmp_path / method)
        assert statistics_in(tmp_path / method, 0) == set()
        assert statistics_in(tmp_path / method, 1) == kept
    cells = load_file(tmp_path / "joint" / "step-1" / "memory.safetensors")["ClosedForm.cells"]
    assert len(cells) == 5
    assert cells.min() > 0


def test_a_network_that_cannot_carry_statistics_is_trained_all_the_same(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("of its size.")

    monkeypatch.setattr("incseg.methods.ridge.feature_layout", refuse)
    monkeypatch.setattr("incseg.engine.trainer.original_encoder", lambda student, _: copy.deepcopy(student.encoder))
    result = train(quick_config("ft", task="offline"), tmp_path)
    assert len(result["steps"]) == 1
    assert load_model(RunFolder(tmp_path).model(0))[0].original is None, "nothing looks at it"
    assert "the model gets no statistics for later extensions: of its size." in capsys.readouterr().out
    with pytest.raises(InputError, match="of its size"):
        train(quick_config("analytic"), tmp_path / "analytic")
    assert not (tmp_path / "analytic").exists()


def test_long_work_without_training_says_how_far_it_is(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = quick_config("analytic", engine={"accelerator": "cpu", "pictures": 0, "score_batch_size": 4})
    train(config, tmp_path / "quick")
    assert "gathering statistics" not in capsys.readouterr().out  # within the first seconds nobody wonders
    monkeypatch.setattr("incseg.engine.journal.PATIENCE", 0.0)
    train(config, tmp_path / "slow")
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("analytic · gathering statistics: 100 %") == 2
    assert lines.count("analytic · counting the pixels of each class: 100 %") == 2
    assert sum("gathering" in line for line in lines) > 4


def test_other_processes_are_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(RunFolder(tmp_path), {"method": "analytic"}, last_step=1, active=False)
    with journal.progress("gathering statistics") as advance:
        advance(1, 1)
    assert capsys.readouterr().out == ""


@dataclass
class Watcher(Part):
    """Freezes at step 1 only, and remembers something of every step."""

    def begin(self, context: Context) -> None:
        context.student.encoder.requires_grad_(context.step.index != 1)

    def observe(self, view: View, student: Segmenter) -> None:  # noqa: ARG002
        gradient = student.trained_head.heads[0].get_parameter("weight").grad
        assert gradient is not None
        self.memory["seen"] = self.memory.get("seen", torch.zeros(())) + gradient.abs().sum()

    def end(self, context: Context) -> None:
        self.memory[f"after-{context.step.index}"] = self.memory["seen"].clone()


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(METHODS, "_items", dict(METHODS._items))
    register_method("watching", "for this test", paper="–")(lambda: [Watcher()])
    return "mib+watching"


def test_what_a_part_froze_and_remembers_survives_interruptions(
    watching: str, quick_config: MakeConfig, tmp_path: Path
) -> None:
    engine = {"accelerator": "cpu", "log_every": 1, "pictures": 0, "checkpoint_every": 1}
    config = quick_config(watching, task="2-1-1", engine=engine)
    train(config, tmp_path / "whole")
    train_with_interruptions(config, tmp_path / "cut", [("step 1", 2), ("step 2", 1), ("step 2", 3)])
    assert bytes_of(tmp_path / "whole", 2) == bytes_of(tmp_path / "cut", 2)
    memory = [(tmp_path / name / "step-2" / "memory.safetensors").read_bytes() for name in ("whole", "cut")]
    assert memory[0] == memory[1]
    assert set(load_file(tmp_path / "cut" / "step-2" / "memory.safetensors")) == {
        "Watcher.seen", "Watcher.after-0", "Watcher.after-1", "Watcher.after-2",
    }  # fmt: skip


@pytest.mark.xdist_group("ft")
def test_a_part_that_remembers_step_0_needs_its_own(
    watching: str, reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="trains step 0 differently from 'ft'"):
        train(quick_config(watching), tmp_path / "run", first_step=reference("ft"))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def finished(reference: Callable[[str], Path], tmp_path: Path) -> Path:
    """A run of ft in a folder of its own; tests that take it belong to the group of ft."""
    return shutil.copytree(reference("ft"), tmp_path / "finished")


@pytest.mark.xdist_group("ft")
def test_a_log_line_cut_short_by_a_crash_does_not_matter(finished: Path, quick_config: MakeConfig) -> None:
    whole = (finished / "metrics.jsonl").read_text()
    (finished / "metrics.jsonl").write_text(whole[:-20])
    shutil.rmtree(finished / "step-1")
    train(quick_config("ft"), finished)
    assert (finished / "metrics.jsonl").read_text() == whole


@pytest.mark.xdist_group("ft")
def test_precision_is_part_of_a_run_and_the_machine_is_not(finished: Path, quick_config: MakeConfig) -> None:
    train(quick_config("ft", engine={"accelerator": "cpu", "log_every": 5}), finished)
    with pytest.raises(InputError, match=r"engine\.precision is 32-true there and bf16-mixed here"):
        train(quick_config("ft", engine={"accelerator": "cpu", "precision": "bf16-mixed"}), finished)


@pytest.mark.parametrize(
    ("every", "seconds_per_look", "saved"),
    [(None, 0.0, []), (None, 100.0, [5, 10]), (3, 0.0, [3, 6, 9])],
)
def test_short_epochs_are_not_all_saved(
    every: int | None,
    seconds_per_look: float,
    saved: list[int],
    quick_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, clock = list[int](), count()
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: seconds_per_look * next(clock)))
    monkeypatch.setattr(Checkpoint, "save", lambda self, _: found.append(self.iteration))
    engine = {"accelerator": "cpu", "pictures": 0, "statistics": False, "checkpoint_every": every}
    train(quick_config("ft", task="offline", engine=engine), tmp_path)
    assert found == saved


@pytest.mark.xdist_group("ft")
def test_a_finished_run_is_not_learnt_again(finished: Path, quick_config: MakeConfig) -> None:
    before = (finished / "step-1" / "model.safetensors").stat().st_mtime_ns
    train(quick_config("ft"), finished)
    assert (finished / "step-1" / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_that_has_begun_needs_its_pretrained_weights_no_more(quick_config: MakeConfig, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pth"
    encoder = Segmenter(Architecture(encoder="test_resnet"), [2]).encoder
    torch.save(encoder.state_dict(), weights)
    plain = quick_config("ft")
    config = plain.model_copy(update={"model": plain.model.model_copy(update={"weights": str(weights)})})
    whole = train(config, tmp_path / "run")
    weights.unlink()
    shutil.rmtree(tmp_path / "run" / "step-1")
    assert train(config, tmp_path / "run") == whole
    with pytest.raises(InputError, match="no weights file"):
        train(config, tmp_path / "other")


@pytest.mark.xdist_group("ft")
def test_another_runs_folder_is_refused(finished: Path, quick_config: MakeConfig) -> None:
    with pytest.raises(InputError, match=r"holds another run \(seed is 42 there and 2 here\)"):
        train(quick_config("ft", seed=2), finished)


@pytest.mark.xdist_group("mib+ucd")
def test_methods_share_a_first_step(reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path) -> None:
    own, shared_run = reference("mib+ucd"), tmp_path / "shared"
    train(quick_config("mib+ucd"), shared_run, first_step=reference("ft"))
    assert bytes_of(own)[0] == bytes_of(shared_run)[0]
    files = [run / "step-1" / "model.safetensors" for run in (own, shared_run)]
    alone, shared = map(load_file, files)
    assert all(torch.equal(alone[name], shared[name]) for name in alone)
    learnt_by = [[record["method"] for record in describe_model(file).history] for file in files]
    assert learnt_by == [["mib+ucd", "mib+ucd"], ["ft", "mib+ucd"]]


@pytest.mark.xdist_group("ft")
def test_tasks_that_begin_alike_share_a_first_step(
    reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path
) -> None:
    train(quick_config("ft", task="2-1"), tmp_path / "alone")
    train(quick_config("ft", task="2-1"), tmp_path / "shared", first_step=reference("ft"))
    assert bytes_of(tmp_path / "alone", 2) == bytes_of(tmp_path / "shared", 2)
    with pytest.raises(InputError, match="protocol is folder/2-2/overlapped there and folder/1-1/overlapped here"):
        train(quick_config("ft", task="1-1"), tmp_path / "other", first_step=reference("ft"))


def test_runs_with_another_solved_head_plan_a_step_0_of_their_own(quick_config: MakeConfig) -> None:
    same = first_step_identity(quick_config("analytic"))
    other = quick_config("analytic", settings={"analytic": {"ridge": 2.0}})
    assert same == first_step_identity(quick_config("analytic"))
    assert len({same, first_step_identity(other), first_step_identity(quick_config("ft"))}) == 3


def test_a_first_step_of_another_kind_is_refused(quick_config: MakeConfig, tmp_path: Path) -> None:
    train(quick_config("ft", task="offline"), tmp_path / "other")
    with pytest.raises(InputError, match="cannot be shared: protocol is folder/offline"):
        train(quick_config("mib"), tmp_path / "run", first_step=tmp_path / "other")
    with pytest.raises(InputError, match="not the folder of a run"):
        train(quick_config("mib"), tmp_path / "run", first_step=tmp_path / "nowhere")


@pytest.mark.xdist_group("sdr")
def test_settings_that_shape_step_0_need_their_own(
    reference: Callable[[str], Path], quick_config: MakeConfig, tmp_path: Path
) -> None:
    """And a setting of later steps does not, though it belongs to a part that shapes step 0."""
    stronger = quick_config("sdr", settings={"sdr": {"attraction": 100.0}})
    with pytest.raises(InputError, match=r"trains step 0 differently .*attraction=0\.001.* there, .*attraction=100\.0"):
        train(stronger, tmp_path / "stronger", first_step=reference("sdr"))
    assert first_step_identity(stronger) != first_step_identity(quick_config("sdr"))
    other = quick_config("sdr", settings={"sdr": {"kd_weight": 1.0}})
    assert first_step_identity(other) == first_step_identity(quick_config("sdr"))
    train(other, tmp_path / "other", first_step=reference("sdr"))


def test_the_rates_of_later_steps_make_no_other_step_0(quick_config: MakeConfig, tmp_path: Path) -> None:
    def at(rate: float, **rates: float) -> RunConfig:
        return quick_config("ft", optim={"epochs": 1, "batch_size": 4, "incremental_learning_rate": rate, **rates})

    rates = {"encoder_rate": 0, "decoder_rate": 0.5, "new_heads_rate": 10, "freeze_norm": True}
    slow, other = at(0.02), at(0.05, **rates, incremental_epochs=3)
    train(slow, tmp_path / "slow")
    train(other, tmp_path / "own")
    train(other, tmp_path / "shared", first_step=tmp_path / "slow")
    assert bytes_of(tmp_path / "own")[0] == bytes_of(tmp_path / "shared")[0]
    assert first_step_identity(slow) == first_step_identity(other)
    before, after = (load_file(tmp_path / "own" / f"step-{index}" / "model.safetensors") for index in (0, 1))
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"decoder", "classifier"}
    lines = [json.loads(line) for line in (tmp_path / "own" / "metrics.jsonl").read_text().splitlines()]
    last = {line["step"]: line["epoch"] for line in lines if "epoch" in line}
    assert last == {"step 0": 1, "step 1": 3}
    with pytest.raises(InputError, match=r"cannot be shared: optim\.epochs is 1 there and 2 here"):
        train(quick_config("ft"), tmp_path / "longer", first_step=tmp_path / "slow")


@pytest.mark.parametrize("method", ["ewc", "rw"])
def test_parameters_that_the_network_never_uses_do_no_harm(
    method: str, quick_config: MakeConfig, tmp_path: Path
) -> None:
    network = {"encoder": "efficientnet-b0", "decoder": "fpn", "weights": "none"}
    result = train(quick_config(method, model=network, optim={"epochs": 1, "batch_size": 8}), tmp_path)
    assert len(result["steps"]) == 2
    memory = load_file(tmp_path / "step-1" / "memory.safetensors")
    unused = [value for name, value in memory.items() if name.endswith("importance/encoder._conv_head.weight")]
    assert [value.abs().max() for value in unused] == [0]
    used = [value for name, value in memory.items() if name.endswith("importance/encoder._conv_stem.weight")]
    assert all(value.max() > 0 for value in used)


@pytest.mark.xdist_group("mib")
def test_scoring_again_gives_the_same_scores(reference: Callable[[str], Path]) -> None:
    assert rescore(reference("mib")) == read_json(reference("mib") / "result.json")


@pytest.mark.xdist_group("ft")
def test_scoring_again_takes_no_more_processes_than_cores(
    finished: Path, quick_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quick_config("ft")
    many = config.model_copy(update={"data": config.data.model_copy(update={"workers": 64})})
    (finished / "config.yaml").write_text(to_yaml(many))
    asked = []

    def watched(images: ScoredImages, batch_size: int, workers: int, *_: int) -> object:
        asked.append(workers)
        return whole_loader(images, batch_size, 0)

    monkeypatch.setattr("incseg.engine.evaluator.whole_loader", watched)
    rescore(finished)
    assert asked == [os.cpu_count()] * 2


def test_a_run_can_be_scored_by_another_evaluation_than_in_training(quick_config: MakeConfig, tmp_path: Path) -> None:
    def with_data(**data: object) -> RunConfig:
        config = quick_config("ft")
        return config.model_copy(update={"data": config.data.model_copy(update=data)})

    whole = train(with_data(crop_size=32), tmp_path / "whole")
    there = {"scoring": "paper", "future": "ignore"}
    middle = train(with_data(crop_size=32, **there), tmp_path / "middle")
    assert whole["steps"] != middle["steps"]
    again = rescore(tmp_path / "whole", settings={"data": there})
    assert (again["steps"], again["settings"]) == (middle["steps"], middle["settings"])
    assert rescore(tmp_path / "whole", settings={"engine": {"score_batch_size": 3}}) == whole
    assert rescore(tmp_path / "whole") == whole  # nothing was written

    with pytest.raises(InputError, match=r"data\.future is background there and ignore here \(its scores come with it"):
        train(with_data(crop_size=32, **there), tmp_path / "other", first_step=tmp_path / "whole")
    with pytest.raises(InputError, match=r"--optim\.batch-size belongs to the training.* takes --data\.background, "):
        rescore(tmp_path / "whole", settings={"optim": {"batch_size": 2}})
    with pytest.raises(InputError, match=r"data\.scoring cannot be 'half'"):
        rescore(tmp_path / "whole", settings={"data": {"scoring": "half"}})


def test_an_extension_has_one_evaluation(quick_config: MakeConfig, tmp_path: Path) -> None:
    config = quick_config("mib")
    extended = config.model_copy(update={"data": config.data.model_copy(update={"known": ("background", "disc")})})
    (tmp_path / "config.yaml").write_text(to_yaml(extended))
    with pytest.raises(InputError, match="an extension is scored in one way only"):
        rescore(tmp_path, settings={"data": {"scoring": "paper"}})


@pytest.fixture
def trainer(quick_config: MakeConfig, tmp_path: Path) -> Trainer:
    config = quick_config("mib")
    return build(config, tmp_path / "run", launch(config))


def test_the_teacher_is_the_frozen_student_of_the_step_before(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    begin = type(trainer.method).begin

    def spy(self: Any, context: Any) -> None:
        teacher = context.teacher
        seen.append(None if teacher is None else {k: v.clone() for k, v in teacher.state_dict().items()})
        assert teacher is None or (not teacher.training and not any(p.requires_grad for p in teacher.parameters()))
        begin(self, context)

    monkeypatch.setattr(type(trainer.method), "begin", spy)
    trainer.run()
    first, _ = load_model(trainer.folder.model(0))
    assert seen[0] is None
    assert seen[1] is not None
    assert all(torch.equal(value, seen[1][name]) for name, value in first.state_dict().items())


def test_a_loss_that_is_not_finite_stops_the_run_with_a_sentence(quick_config: MakeConfig, tmp_path: Path) -> None:
    config = quick_config("ft", optim={"epochs": 20, "batch_size": 4, "learning_rate": 1e12})
    with pytest.raises(TrainingError, match=r"no longer finite at step 0, iteration \d+.*--optim\.learning-rate"):
        train(config, tmp_path)
    if (tmp_path / "checkpoint.pt").exists():
        saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        assert all(value.isfinite().all() for value in saved["model"].values())


def test_beside_the_labels_the_largest_term_is_blamed(quick_config: MakeConfig, tmp_path: Path) -> None:
    settings = {"mib": {"kd_weight": 1e30}}
    with pytest.raises(
        TrainingError, match=r"at step 1, .*--optim\.incremental-learning-rate, or a smaller weight of "
    ):
        train(quick_config("mib+ucd", settings=settings), tmp_path)


def test_too_small_a_batch_is_refused_before_anything_starts(quick_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least two"):
        train(quick_config("ft", optim={"batch_size": 1}), tmp_path / "run")
    with pytest.raises(InputError, match="cannot be shared by 3"):
        train(quick_config("ft", engine={"devices": 3}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_processes_of_torchrun_that_the_settings_do_not_expect_are_refused(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        InputError, match="torchrun started 2 processes, and the settings are for 1 on each of 1 machine"
    ):
        train(quick_config("ft"), tmp_path / "run")


def test_mixed_precision_trains(quick_config: MakeConfig, tmp_path: Path) -> None:
    config = quick_config("mib+ucd", engine={"accelerator": "cpu", "precision": "bf16-mixed", "pictures": 0})
    assert train(config, tmp_path)["steps"][1]["miou"]["all"] is not None


@pytest.mark.parametrize("quick", [False, True])
def test_losses_start_from_coarse_logits_where_iterations_are_to_be_quick(
    quick: bool, quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def enlarge(scores: CoarseLogits, *, fused: bool) -> Scores:
        asked.append(fused)
        return losses.coarse.enlarge(scores, fused=fused)

    monkeypatch.setattr(losses, "enlarge", enlarge)
    config = quick_config("plop", engine={"accelerator": "cpu", "compile": quick})
    trainer = build(config, tmp_path, launch(config))
    trainer.prepare(trainer.curriculum.steps[0])
    run = trainer.prepare(trainer.curriculum.steps[1])
    assert set(asked) == {quick}, "the pass before a step"
    asked.clear()
    trainer.iterations.train_on(run, next(iter(trainer.data.batches(run.step, run.images, epochs=1))), 0)
    assert set(asked) == {quick}
