"""Settings of the closed-form head side by side on Pascal VOC, from one trained step 0.

The network's features of all images are computed once and kept on the GPU, so that a setting costs seconds. Settings
are to be chosen with ``--held-out``: the head is fitted without every tenth training image and scored on those.

    python benchmarks/closed_form_sweep.py VOC2012 runs/15-5-ft/step-0/model.safetensors --task 15-1 [--held-out]
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.curriculum.rules import training_images
from incseg.datasets import Split, open_source
from incseg.metrics import confusion_matrix, intersection_over_union, mean
from incseg.models import Segmenter
from incseg.models.closed_form import FeatureLayout, RandomFeatures, Statistics, class_shares, complete_background
from incseg.models.segmenter import padded_images
from incseg.models.storage import load_model
from incseg.protocol import IGNORE, Setting, Step, steps

FOREGROUND = 20
BATCH = 32
SETTINGS = [
    {},
    *({"balance": value} for value in (0.0, 0.15, 0.35, 0.5)),
    *({"certainty": value} for value in (0.5, 1.0, 2.0)),
    *({"width": value} for value in (2048, 8192)),
    {"stages": 0},
    {"stages": 2},
    {"ridge": 100.0},
    {"soft": True},
]
DEFAULTS = {"width": 4096, "balance": 0.25, "ridge": 1.0, "stages": 1, "certainty": 0.0, "soft": False}


class Cells(NamedTuple):
    """What is kept of some images of one size: their indices, masks, and the network's embedding and last stages."""

    indices: list[int]
    masks: Tensor
    embedding: Tensor
    stages: list[Tensor]

    def chosen(self, wanted: set[int]) -> "Iterator[Cells]":
        """The images among the wanted ones, a few at a time."""
        places = [place for place, index in enumerate(self.indices) if index in wanted]
        for some in _batched(places):
            rows = torch.tensor(some, device=self.masks.device)
            yield Cells(
                [self.indices[place] for place in some],
                self.masks[rows],
                self.embedding[rows],
                [stage[rows] for stage in self.stages],
            )


def _batched(places: list[int]) -> Iterator[list[int]]:
    """A few at a time."""
    return (places[start : start + BATCH] for start in range(0, len(places), BATCH))


@torch.no_grad()
def look_at(segmenter: Segmenter, split: Split, *, mirrored: bool) -> tuple[list[Cells], list[frozenset[int]]]:
    """The features of every image, and the classes it shows."""
    device = segmenter.mean.device
    with ThreadPoolExecutor(16) as pool:
        pairs = list(pool.map(lambda index: (split.image(index), split.mask(index)), range(len(split))))
    shown = [frozenset(mask.unique().tolist()) - {0, IGNORE} for _, mask in pairs]
    by_size: dict[tuple[int, int], list[int]] = {}
    for index, (_, mask) in enumerate(pairs):
        by_size.setdefault((mask.shape[0], mask.shape[1]), []).append(index)
    found = []
    for indices in by_size.values():
        for some in _batched(indices):
            images = padded_images(torch.stack([pairs[index][0] for index in some]).to(device))
            masks = torch.full((len(some), *images.shape[-2:]), IGNORE, dtype=torch.uint8, device=device)
            height, width = pairs[some[0]][1].shape
            masks[:, :height, :width] = torch.stack([pairs[index][1] for index in some]).to(device)
            for flip in (False, True) if mirrored else (False,):
                seen, truth = (images.flip(-1), masks.flip(-1)) if flip else (images, masks)
                embedding, stages = segmenter.features(seen)
                found.append(Cells(some, truth, embedding.half(), [stage.half() for stage in stages[-2:]]))
    return found, shown


def labels_of(step: Step, masks: Tensor) -> Tensor:
    """Only the step's own classes are labelled."""
    table = torch.zeros(IGNORE + 1, dtype=torch.int64, device=masks.device)
    table[list(step.new)] = torch.tensor(step.new, device=masks.device)
    table[IGNORE] = IGNORE
    return table[masks.long()]


def fit(task: str, cells: list[Cells], shown: list[frozenset[int]], used: set[int], chosen: dict[str, float]) -> Tensor:
    """The head after the last step of the overlapped setting, and the features it is for."""
    device = cells[0].masks.device
    features = random_features(cells[0], chosen).to(device)
    statistics = Statistics.empty(features.layout, device)
    head: Tensor | None = None
    for step in steps(task, FOREGROUND):
        wanted = used & set(training_images(shown, step, Setting.OVERLAPPED, range(FOREGROUND + 1)))
        counts = torch.zeros(step.num_classes, dtype=torch.float64, device=device)
        for some in (part for group in cells for part in group.chosen(wanted)):
            labels = labels_of(step, some.masks).flatten()
            counts += torch.bincount(labels, minlength=IGNORE + 1)[: step.num_classes]
        statistics = statistics.with_classes(counts[statistics.num_classes :] / features.layout.stride**2)
        added, weights = statistics.nothing(), statistics.class_weights(chosen["balance"])
        for some in (part for group in cells for part in group.chosen(wanted)):
            random = features(some.embedding, some.stages)
            labels = labels_of(step, some.masks)
            shares = class_shares(labels, step.num_classes, features.layout.stride, soft=bool(chosen["soft"]))
            if head is not None:
                shares = complete_background(shares, random @ head, chosen["certainty"])
            added.add(random.flatten(0, 2), shares.flatten(0, 2), weights)
        statistics = statistics.plus(added)
        head = statistics.solve(chosen["ridge"]).float()
    assert head is not None
    return head


def random_features(example: Cells, chosen: dict[str, float]) -> RandomFeatures:
    """The projection of a setting; all maps of DeepLab-v3 at stride 16 have the size of the embedding."""
    maps = [example.embedding, *reversed(example.stages)][: 1 + int(chosen["stages"])]
    channels = tuple(each.shape[1] for each in maps)
    return RandomFeatures(FeatureLayout(channels=channels, strides=(16,) * len(maps), width=int(chosen["width"])))


def score(head: Tensor, features: RandomFeatures, cells: list[Cells], wanted: set[int]) -> list[float]:
    """IoU per channel."""
    confusion = torch.zeros(FOREGROUND + 1, FOREGROUND + 1, dtype=torch.int64, device=head.device)
    for some in (part for group in cells for part in group.chosen(wanted)):
        scores = (features(some.embedding, some.stages) @ head).movedim(-1, 1)
        predicted = F.interpolate(scores, size=some.masks.shape[-2:], mode="bilinear").argmax(dim=1)
        confusion += confusion_matrix(some.masks.long(), predicted, FOREGROUND + 1)
    return intersection_over_union(confusion)


@torch.no_grad()
def main() -> None:
    """Print one line of JSON per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--task", default="15-1")
    parser.add_argument("--held-out", action="store_true")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    segmenter = load_model(arguments.model, "cuda" if torch.cuda.is_available() else "cpu")[0]
    source = open_source("voc", arguments.data)
    train, shown = look_at(segmenter, source.train, mirrored=True)
    every = set(range(len(source.train)))
    held = set(range(0, len(source.train), 10)) if arguments.held_out else set[int]()
    scored = train if held else look_at(segmenter, source.val, mirrored=False)[0]
    first = len(steps(arguments.task, FOREGROUND)[0].new)
    for setting in SETTINGS:
        chosen = {**DEFAULTS, **setting}
        head = fit(arguments.task, train, shown, every - held, chosen)
        iou = score(
            head, random_features(train[0], chosen).to(head.device), scored, held or set(range(len(source.val)))
        )
        groups = {"old": iou[1 : first + 1], "new": iou[first + 1 :], "all": iou[1:]}
        print(json.dumps({**setting, **{name: round(100 * mean(values), 1) for name, values in groups.items()}}))


if __name__ == "__main__":
    main()
