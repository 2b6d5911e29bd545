"""Scores by hand: a Cityscapes-shaped tree, and a network that sees road everywhere."""

import math
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from incseg.batch import Batch
from incseg.config import load_recipe
from incseg.curriculum import Curriculum, ProtocolCurriculum, build_curriculum
from incseg.datasets import Split
from incseg.engine.evaluator import _batch_size, score, score_step, step_entry
from incseg.loading import whole_loader
from incseg.loading.remembered import ScoredMemory
from incseg.metrics import nan_if_none
from incseg.models import Architecture, Segmenter
from incseg.protocol import Protocol
from incseg.sizes import TILE
from samples import write_cityscapes

ROAD, SKY, CAR, VOID = 7, 23, 26, 4
EVERYTHING = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]


class SeesRoad:
    """Stands in for a segmenter with 14 channels."""

    mean, architecture = torch.zeros(1), Architecture()

    def __init__(self) -> None:
        self.largest = 0

    def eval(self) -> "SeesRoad":
        return self

    def segment(self, images: Tensor) -> Tensor:
        self.largest = max(self.largest, *images.shape[-2:])
        logits = torch.zeros(len(images), 14, *images.shape[-2:])
        logits[:, 1] = 1
        return logits


@pytest.fixture
def root(tmp_path: Path) -> Path:
    # Stripes of 2×4 pixels: eight each. The last image shows nothing of the first thirteen classes.
    val = {"ulm_1_0": [ROAD, ROAD, SKY, CAR], "ulm_1_1": [VOID, ROAD], "ulm_1_2": [CAR, VOID]}
    return write_cityscapes(tmp_path, {"ulm_0_0": EVERYTHING}, val)


def curriculum(root: Path, **settings: str) -> Curriculum:
    config = load_recipe("cityscapes/13-6", {"data": {"root": root, "scoring": "full", **settings}})
    return build_curriculum(Protocol.parse(config.protocol), config.data)


@pytest.mark.parametrize(
    ("settings", "road", "background", "everything"),
    [
        # UCD: void is background and scored, cars to come are not: road 24 of 24 + 8 sky + 8 void, background 0 of 8.
        ({}, 24 / 40, 0.0, (24 / 40 + 0 + 0) / 3),
        # Cityscapes' own: void is not scored either: road 24 of 32, and there is no background.
        ({"scored_void": "ignore"}, 24 / 32, math.nan, (24 / 32 + 0) / 2),
        # PLOP: cars to come are background: 8 more to be wrong about.
        ({"future": "background"}, 24 / 48, 0.0, (24 / 48 + 0 + 0) / 3),
        # The images without a class learnt so far as well: one more stripe of void.
        ({"score_on": "all"}, 24 / 48, 0.0, (24 / 48 + 0 + 0) / 3),
        # Background may be left out whatever it is made of.
        ({"background": "ignore", "future": "background"}, 24 / 32, math.nan, (24 / 32 + 0) / 2),
    ],
)
def test_scores_of_whole_images_by_hand(
    root: Path, settings: dict[str, str], road: float, background: float, everything: float
) -> None:
    plan = curriculum(root, **settings)
    step = plan.steps[0]
    (scored,) = plan.scored_images(step)
    loader = whole_loader(scored, batch_size=2, workers=0)
    confusion = score(cast(Segmenter, SeesRoad()), loader, torch.arange(step.num_classes), torch.device("cpu"))
    entry = step_entry(step, plan.classes[:14], 1, confusion.expand(1, 2, -1, -1))
    assert entry["iou"]["road"] == road
    assert entry["iou"]["sky"] == 0
    assert entry["iou"]["wall"] is None  # nowhere to be seen
    assert nan_if_none(entry["iou"]["background"]) == pytest.approx(background, nan_ok=True)
    assert entry["miou"]["all"] == pytest.approx((road + 0) / 2)
    assert entry["miou"]["all_with_background"] == pytest.approx(everything)


def test_scores_of_the_papers_crop_by_hand(root: Path) -> None:
    """All images are 4 high, so that a crop of 4 resizes nothing; the first, 8 wide, keeps half a road and the sky."""
    plan = curriculum(root, scoring="paper")
    assert isinstance(plan, ProtocolCurriculum)
    assert plan.scored_crop is not None
    assert plan.scored_crop.size == 512
    plan.scored_crop.size = 4
    step = plan.steps[0]
    (scored,) = plan.scored_images(step)
    assert {tuple(scored[i].labels.shape) for i in range(2)} == {(4, 4)}
    loader = whole_loader(scored, batch_size=2, workers=0)
    confusion = score(cast(Segmenter, SeesRoad()), loader, torch.arange(step.num_classes), torch.device("cpu"))
    # Columns 2 to 5 of the first: one stripe of road, one of sky; the second whole: one of void, one of road.
    assert confusion[1, 1] == 16
    assert confusion[11, 1] == 8
    assert confusion[0, 1] == 8
    assert confusion.sum() == 32


@pytest.mark.parametrize(
    ("size", "device", "expected"),
    [(256, "cpu", 8), (256, "cuda", 64), (512, "cuda", 16), (1024, "cuda", 8), (2048, "cuda", 2), (2048, "cpu", 2)],
)
def test_a_gpu_scores_more_small_images_at_once(root: Path, size: int, device: str, expected: int) -> None:
    plan = curriculum(root, scoring="paper")
    assert isinstance(plan, ProtocolCurriculum)
    assert plan.scored_crop is not None
    plan.scored_crop.size = size
    (scored,) = plan.scored_images(plan.steps[0])
    assert _batch_size(scored, 8, torch.device(device)) == expected


@pytest.mark.parametrize("scoring", ["full", "paper"])
def test_processes_that_keep_images_count_the_same_and_read_each_once(
    root: Path, scoring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_recipe("cityscapes/13-6", {"data": {"root": root, "scoring": scoring, "workers": 0}})
    plan = build_curriculum(Protocol.parse(config.protocol), config.data)
    network, cpu = cast(Segmenter, SeesRoad()), torch.device("cpu")
    expected = [score_step(network, plan, step, config, cpu) for step in plan.steps]
    split, read = type(plan.source.val), []
    image = split.image

    def noted(given: Split, index: int) -> Tensor:
        read.append(index)
        return image(given, index)

    monkeypatch.setattr(split, "image", noted)
    memories = [ScoredMemory(), ScoredMemory()]
    for step, counts in zip(plan.steps, expected, strict=True):
        first, second = (
            score_step(network, plan, step, config, cpu, rank, 2, memory=memory) for rank, memory in enumerate(memories)
        )
        assert torch.equal(first + second, counts)
    assert sorted(read) == [0, 1, 2], "the last one only in the second step"


def test_large_images_are_scored_in_tiles_and_every_pixel_once() -> None:
    labels = torch.zeros(1, 1100, 1500, dtype=torch.int64)
    labels[:, :, 700:], labels[:, 5] = 1, 255
    network = SeesRoad()
    batch = Batch(torch.zeros(1, 3, 1100, 1500, dtype=torch.uint8), labels)
    confusion = score(cast(Segmenter, network), [[batch]], torch.arange(14), torch.device("cpu"))
    assert network.largest == TILE
    assert confusion[1, 1] == 1099 * 800
    assert confusion[0, 1] == 1099 * 700
    assert confusion.sum() == 1099 * 1500
