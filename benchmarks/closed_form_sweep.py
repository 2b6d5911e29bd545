"""Settings of the closed-form head side by side on Pascal VOC, from one trained step 0.

The network's features of all images are computed once and kept on the GPU, so that a setting costs seconds. Settings
are to be chosen with ``--held-out``: the head is fitted without every tenth training image and scored on those. With
``--crop-size`` it is fitted to two training crops of every image and scored on the middle square, as the recipes do;
else to whole images, mirrored too, and on whole images.

    python benchmarks/closed_form_sweep.py VOC2012 runs/15-5-ft/step-0/model.safetensors --task 15-1 \\
      [--crop-size 256] [--held-out]
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.curriculum.rules import training_images
from incseg.datasets import Split, open_source
from incseg.loading import CentreCrop, TrainingTransform
from incseg.metrics import confusion_matrix, intersection_over_union, mean
from incseg.models import Segmenter
from incseg.models.closed_form import FeatureLayout, RandomFeatures, Statistics, class_shares, complete_background
from incseg.models.decoders import SummedDeepLab
from incseg.models.segmenter import padded_images
from incseg.models.storage import load_model
from incseg.protocol import IGNORE, Setting, Step, steps
from incseg.seeding import seed_from

FOREGROUND = 20
BATCH = 32
SETTINGS: list[dict[str, Any]] = [
    {},
    *({"balance": value} for value in (0.0, 0.15, 0.35, 0.5)),
    *({"certainty": value} for value in (0.5, 1.0, 2.0)),
    *({"width": value} for value in (2048, 8192)),
    {"maps": "u"},
    {"maps": "u v w"},
    *({"context": value} for value in (5, 9, 31)),
    {"context": 31, "width": 8192},
    *({"context": 31, "maps": value} for value in ("u v b", "b v")),
    *({"context": 31, "maps": value, "width": 8192} for value in ("u v b", "b v")),
    {"ridge": 100.0},
    {"soft": True},
]
# Of the maps, the surroundings are those of the second: u embedding, v last stage, w the one before it, b what the
# decoder's branches gave before they were reduced to the embedding.
DEFAULTS: dict[str, Any] = {
    "width": 4096,
    "balance": 0.25,
    "ridge": 1.0,
    "maps": "u v",
    "certainty": 0.0,
    "soft": False,
    "context": 0,
}

Pairs = list[tuple[Tensor, Tensor]]
View = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Cells(NamedTuple):
    """What is kept of some images of one size: their indices, masks, and maps of features by the letter of each."""

    indices: list[int]
    masks: Tensor
    maps: dict[str, Tensor]

    def chosen(self, wanted: set[int]) -> "Iterator[Cells]":
        """The images among the wanted ones, a few at a time."""
        places = [place for place, index in enumerate(self.indices) if index in wanted]
        for some in _batched(places):
            rows = torch.tensor(some, device=self.masks.device)
            maps = {letter: features[rows] for letter, features in self.maps.items()}
            yield Cells([self.indices[place] for place in some], self.masks[rows], maps)

    def seen(self, letters: str) -> tuple[Tensor, list[Tensor]]:
        """Some of the maps as random features take them: the first, and the others in reverse."""
        first, *others = (self.maps[letter] for letter in letters.split())
        return first, others[::-1]


def _batched(places: list[int]) -> Iterator[list[int]]:
    """A few at a time."""
    return (places[start : start + BATCH] for start in range(0, len(places), BATCH))


def read(split: Split, indices: Sequence[int], view: View) -> Pairs:
    """Images and masks, as a view shows them."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda index: view(split.image(index), split.mask(index), index), indices))


def shown_classes(split: Split) -> list[frozenset[int]]:
    """The classes that each image shows."""
    return [frozenset(split.mask(index).unique().tolist()) - {0, IGNORE} for index in range(len(split))]


@torch.no_grad()
def look_at(segmenter: Segmenter, indices: Sequence[int], pairs: Pairs) -> list[Cells]:
    """The features of every image."""
    device, branches = segmenter.mean.device, list[Tensor]()
    decoder = cast(SummedDeepLab, segmenter.decoder)
    decoder.reduce.register_forward_pre_hook(lambda _, given: branches.__setitem__(slice(None), given))
    by_size: dict[tuple[int, int], list[int]] = {}
    for place, (_, mask) in enumerate(pairs):
        by_size.setdefault((mask.shape[0], mask.shape[1]), []).append(place)
    found = []
    for (height, width), places in by_size.items():
        for some in _batched(places):
            images = padded_images(torch.stack([pairs[place][0] for place in some]).to(device))
            masks = torch.full((len(some), *images.shape[-2:]), IGNORE, dtype=torch.uint8, device=device)
            masks[:, :height, :width] = torch.stack([pairs[place][1] for place in some]).to(device)
            embedding, stages = segmenter.features(images)
            maps = {"u": embedding, "v": stages[-1], "w": stages[-2], "b": branches[0]}
            kept = {letter: features.half() for letter, features in maps.items()}
            found.append(Cells([indices[place] for place in some], masks, kept))
    return found


def labels_of(step: Step, masks: Tensor) -> Tensor:
    """Only the step's own classes are labelled."""
    table = torch.zeros(IGNORE + 1, dtype=torch.int64, device=masks.device)
    table[list(step.new)] = torch.tensor(step.new, device=masks.device)
    table[IGNORE] = IGNORE
    return table[masks.long()]


def fit(task: str, cells: list[Cells], shown: list[frozenset[int]], used: set[int], chosen: dict[str, Any]) -> Tensor:
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
            random = features(*some.seen(chosen["maps"]))
            labels = labels_of(step, some.masks)
            shares = class_shares(labels, step.num_classes, features.layout.stride, soft=chosen["soft"])
            if head is not None:
                shares = complete_background(shares, random @ head, chosen["certainty"])
            added.add(random.flatten(0, 2), shares.flatten(0, 2), weights)
        statistics = statistics.plus(added)
        head = statistics.solve(chosen["ridge"]).float()
    assert head is not None
    return head


def random_features(example: Cells, chosen: dict[str, Any]) -> RandomFeatures:
    """The projection of a setting; all maps of DeepLab-v3 at stride 16 have the size of the embedding."""
    channels = tuple(example.maps[letter].shape[1] for letter in chosen["maps"].split())
    layout = FeatureLayout(channels=channels, strides=(16,) * len(channels), width=chosen["width"])
    return RandomFeatures(layout.with_context(chosen["context"]) if chosen["context"] else layout)


def views(crop_size: int | None) -> tuple[list[View], View]:
    """How images are shown to be fitted to, one after the other, and how to be scored."""
    if crop_size is None:
        return [lambda *pair: pair[:2], lambda image, mask, _: (image.flip(-1), mask.flip(-1))], lambda *pair: pair[:2]
    cut, middle = TrainingTransform(crop_size), CentreCrop(crop_size)
    crops = [lambda image, mask, index, k=k: cut(image, mask, seed_from("sweep", k, index)) for k in range(2)]
    return crops, lambda image, mask, _: middle(image, mask.long())


def score(head: Tensor, features: RandomFeatures, cells: list[Cells], wanted: set[int], letters: str) -> list[float]:
    """IoU per channel."""
    confusion = torch.zeros(FOREGROUND + 1, FOREGROUND + 1, dtype=torch.int64, device=head.device)
    for some in (part for group in cells for part in group.chosen(wanted)):
        scores = (features(*some.seen(letters)) @ head).movedim(-1, 1)
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
    parser.add_argument("--crop-size", type=int, default=None)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--settings", nargs="+", type=json.loads, default=SETTINGS, metavar="JSON", help="which to try")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    segmenter = load_model(arguments.model, "cuda" if torch.cuda.is_available() else "cpu")[0]
    source = open_source("voc", arguments.data)
    fitted, shown = list(range(len(source.train))), shown_classes(source.train)
    to_fit, to_score = views(arguments.crop_size)
    train = [cells for view in to_fit for cells in look_at(segmenter, fitted, read(source.train, fitted, view))]
    held = set(range(0, len(source.train), 10)) if arguments.held_out else set[int]()
    split, measured = (source.train, sorted(held)) if held else (source.val, list(range(len(source.val))))
    scored = look_at(segmenter, measured, read(split, measured, to_score))
    first = len(steps(arguments.task, FOREGROUND)[0].new)
    for setting in arguments.settings:
        chosen = {**DEFAULTS, **setting}
        head = fit(arguments.task, train, shown, set(fitted) - held, chosen)
        iou = score(head, random_features(train[0], chosen).to(head.device), scored, set(measured), chosen["maps"])
        groups = {"old": iou[1 : first + 1], "new": iou[first + 1 :], "all": iou[1:]}
        print(
            json.dumps({**setting, **{name: round(100 * mean(values), 1) for name, values in groups.items()}}),
            flush=True,
        )


if __name__ == "__main__":
    main()
