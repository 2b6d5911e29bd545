from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from incseg.batch import Batch, Outputs, View
from incseg.config import RunConfig
from incseg.engine.assembly import build, launch, train
from incseg.engine.checkpoint import FinishedStep
from incseg.methods.rehearsal import CompletedCrossEntropy, RehearsalMemory, _take_turns
from incseg.protocol import steps

MakeConfig = Callable[..., RunConfig]


def test_classes_choose_images_in_turn() -> None:
    common = {(i, 0): frozenset({1}) for i in range(20)}
    rare = {(20, 0): frozenset({1, 2}), (21, 0): frozenset({2})}
    newer = {(i, 1): frozenset({3}) for i in range(10)}
    shown = common | rare | newer
    chosen = _take_turns(shown, (1, 2, 3), 8, torch.Generator().manual_seed(0))
    assert len(chosen) == 8
    assert all(channel in shown[image] for image, channel in chosen.items())
    counts = [list(chosen.values()).count(channel) for channel in (1, 2, 3)]
    assert counts in (
        [3, 2, 3],
        [4, 1, 3],
        [3, 1, 4],
    )  # the rare class has two images, of which class 1 may have taken one
    everything = _take_turns(shown, (1, 2, 3), 100, torch.Generator().manual_seed(0))
    assert set(everything) == set(shown)


def test_with_fewer_places_than_classes_no_class_always_goes_without() -> None:
    channels = range(1, 7)
    shown = {(i, 0): frozenset({1 + i % 6}) for i in range(30)}
    drawn = [set(_take_turns(shown, channels, 2, torch.Generator().manual_seed(seed)).values()) for seed in range(60)]
    assert all(len(kept) == 2 for kept in drawn)
    times = [sum(channel in kept for kept in drawn) for channel in channels]
    assert sum(times) == 120
    assert min(times) > 8, "each should have about 20"


def test_memory_is_bounded_balanced_and_holds_the_labels_of_its_time(quick_config: MakeConfig, tmp_path: Path) -> None:
    config = quick_config("emseg", task="2-1-1", settings={"emseg": {"memory": 6}})
    train(config, tmp_path / "run")
    trainer = build(config, tmp_path / "run", launch(config))
    part = next(p for p in trainer.method.parts if isinstance(p, RehearsalMemory))
    finished = FinishedStep.load(trainer.folder, 1)
    assert finished is not None
    trainer.method.load_memory(finished.memory)
    assert len(part.memory["images"]) == 6
    assert part.memory["channels"].bincount().tolist() == [0, 2, 2, 2]

    last = trainer.curriculum.steps[2]
    trainer.student.trained_head.grow(1)  # as after step 1
    run = trainer.prepare(last)
    replay = run.images.replay
    assert replay is not None
    for position, (index, step, channel) in enumerate(
        zip(*(part.memory[k].tolist() for k in ("images", "steps", "channels")), strict=True)
    ):
        mask = trainer.curriculum.source.train.mask(index).long()
        _, labels = replay.images.pair(position)
        assert (labels == channel).any()
        known = {0: {1, 2}, 1: {3}}[step]
        expected = torch.where(torch.isin(mask, torch.tensor([*known, 255])), mask, 0)
        assert torch.equal(labels, expected)
    batch = next(iter(trainer.data.batches(last, run.images, epochs=1)))
    assert batch.replayed is not None
    assert (batch.replayed > 0).tolist() == [False, False, True, True]


def test_missing_labels_are_completed_by_whoever_is_sure() -> None:
    step = steps("1-1", 2)[1]
    sure, unsure = 5.0, 0.2
    labels = torch.tensor([[[0, 0, 0, 0, 2, 255]]] * 2)
    teacher = torch.zeros(2, 2, 1, 6)
    teacher[:, 1, 0, 0], teacher[:, 1, 0, 1], teacher[:, 1, 0, 4] = sure, unsure, sure
    student = torch.zeros(2, 3, 1, 6)
    student[:, 2, 0, 2], student[:, 2, 0, 3], student[:, 2, 0, 0], student[:, 1, 0, 1] = sure, unsure, sure, sure
    batch = Batch(torch.zeros(2, 3, 1, 6), labels, torch.tensor([0, 1]))
    own = [[1, 0, 0, 0, 2, 255]]  # the step's own image: its new classes are all labelled
    as_labelled = labels[0].tolist()  # and the old ones, where the step is complete
    for found, expected in ((step, own), (replace(step, labelled_old=step.old, complete=True), as_labelled)):
        view = View(batch, Outputs(student, student, []), Outputs(teacher, teacher, []), found)
        completed = CompletedCrossEntropy(confidence=0.7).relabel(view)
        assert completed is not None
        assert completed[0].tolist() == expected
        assert completed[1].tolist() == [[1, 0, 2, 0, 2, 255]]  # a kept image: any class may hide in its background
    assert labels[0].tolist() == [[0, 0, 0, 0, 2, 255]]


def test_step_0_is_plain_cross_entropy() -> None:
    view = View(
        Batch(torch.zeros(1, 3, 1, 4), torch.tensor([[[0, 0, 0, 1]]])),
        Outputs(logits := torch.randn(1, 2, 1, 4), logits, []),
        None,
        steps("1-1", 2)[0],
    )
    part = CompletedCrossEntropy()
    assert part.relabel(view) is None
    assert float(part.losses(view)["segmentation"]) == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, view.labels))
    )
