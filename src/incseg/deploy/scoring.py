"""``incseg eval MODEL --data DIR``: score a model on a folder of images, classes matched by name."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from incseg.batch import Batch
from incseg.console import Console, progress_of
from incseg.datasets import Source, Split, open_source
from incseg.datasets.folder import LAYOUT
from incseg.datasets.scan import class_presence
from incseg.datasets.source import plain
from incseg.deploy.model import Model
from incseg.deploy.prediction import Prediction
from incseg.errors import InputError
from incseg.images import Pixels
from incseg.loading import WholeImages, whole_loader
from incseg.loading.reduced import usual_side
from incseg.metrics import confusion_matrix, intersection_over_union, mean, none_if_nan, per_class_rates
from incseg.protocol import BACKGROUND, IGNORE
from incseg.sizes import far_from_training

BATCH = 8  # images that are loaded together
PATIENCE = 5  # seconds after which a log is told how far it is
NAMED = 12  # classes that a sentence names at most


class Predicts(Protocol):
    """A model, or a file that was exported from one."""

    @property
    def classes(self) -> tuple[str, ...]:
        """By channel, background first."""

    def predict_all(self, images: Sequence[Pixels]) -> list[Prediction]:
        """Segment images."""


@dataclass(frozen=True)
class FolderScores:
    """How well a model does on a folder. The folder may label fewer classes than the model knows, and others.

    A pixel labelled as one of the model's classes can be judged, and one labelled as background is none of the classes
    that the folder labels; so those have an IoU. Classes that the folder does not label have none, and then background
    has none either: they lie in it.
    """

    classes: tuple[str, ...]
    """The model's, by channel."""
    labelled: tuple[int, ...]
    """Channels of the classes that the folder labels too."""
    unknown: tuple[str, ...]
    """Classes of the folder that the model does not know; their pixels are background to it."""
    images: int
    which: str
    """In words, which images of the folder."""
    confusion: Tensor
    """(C, C) int64, by true and predicted channel."""

    @property
    def unlabelled(self) -> list[str]:
        """Classes of the model that the folder does not label."""
        return [name for channel, name in enumerate(self.classes) if channel and channel not in self.labelled]

    @property
    def unshown(self) -> list[str]:
        """Classes that the folder names, and that none of these images shows."""
        return [self.classes[channel] for channel in self.labelled if not self.confusion[channel].any()]

    @property
    def rates(self) -> dict[str, tuple[float, float, float, float]]:
        """IoU, share, recall and precision by name; NaN where they cannot be known."""
        shown = (channel for channel in self.labelled if self.classes[channel] not in self.unshown)
        judged = {*shown, *([] if self.unlabelled else [BACKGROUND])}
        numbers = zip(intersection_over_union(self.confusion), per_class_rates(self.confusion), strict=True)
        return {
            self.classes[channel]: (iou, *others) if channel in judged else (math.nan, math.nan, math.nan, math.nan)
            for channel, (iou, others) in enumerate(numbers)
        }

    @property
    def miou(self) -> float:
        """Without background."""
        return mean(iou for iou, *_ in list(self.rates.values())[1:])

    @property
    def miou_with_background(self) -> float:
        """NaN where background cannot be judged."""
        ious = [iou for iou, *_ in self.rates.values()]
        return math.nan if math.isnan(ious[BACKGROUND]) else mean(ious)

    def remarks(self) -> list[str]:
        """What a reader of the numbers must know."""
        said = [f"Scored on {self.images} image{'s' if self.images != 1 else ''}: {self.which}."]
        if self.unlabelled:
            said.append(
                f"Not labelled there: {_listed(self.unlabelled)}. Whether the model is right about these cannot be "
                "known, nor about background, in which they lie."
            )
        if self.unshown:
            said.append(f"Shown by none of these images, and so not measured: {_listed(self.unshown)}.")
        if self.unknown:
            said.append(f"Not known to the model: {_listed(self.unknown)}. Their pixels are background to it.")
        return said

    def to_json(self) -> dict[str, Any]:
        """Everything, by name; None stands for what cannot be known."""
        names = ("iou", "share", "recall", "precision")
        by_class = {
            name: {key: none_if_nan(value) for key, value in zip(names, values, strict=True)}
            for name, values in self.rates.items()
        }
        miou = {"all": none_if_nan(self.miou), "all_with_background": none_if_nan(self.miou_with_background)}
        return {
            "images": self.images,
            "which": self.which,
            "miou": miou,
            "classes": by_class,
            "unlabelled": self.unlabelled,
            "unknown": list(self.unknown),
            "confusion": self.confusion.tolist(),
        }


def score_folder(model: Predicts, data: Path, console: Console, workers: int = 0) -> FolderScores:
    """Predict the folder's validation images as ``incseg predict`` does, and compare with its masks."""
    if not data.is_dir():
        raise InputError(f"--data {data} is not a folder; it must hold {LAYOUT}.")
    source = open_source("folder", data)
    channels, unknown = _matched(model.classes, source, data)
    splits, which = source.to_score(), _which(source, data)
    images, done = sum(map(len, splits)), 0
    total = torch.zeros(len(model.classes), len(model.classes), dtype=torch.int64)
    for split in splits:
        class_presence(split, source.classes)  # refuses masks with ids of no class before the work begins
    if warning := _scale_warning(model, max(splits, key=len)):
        console.say(f"warning: the images of {data} have {warning}")
    with progress_of(f"scoring {images} images", console, patience=PATIENCE) as advance:
        for split in splits:
            whole = WholeImages(split, range(len(split)), _table(channels))
            for batches in whole_loader(whole, BATCH, min(workers, len(split) // BATCH)):
                for batch in batches:
                    total += _confusion(model, batch)
                    done += len(batch.images)
                    advance(done, images)
    labelled = tuple(channel for channel in channels if channel != BACKGROUND)
    return FolderScores(model.classes, labelled, unknown, images, which, total)


def _scale_warning(model: Predicts, split: Split) -> str:
    """Of an exported file the scale of its training is not known."""
    if not isinstance(model, Model):
        return ""
    network = model.segmenter.architecture
    side = usual_side(split, network.longest_side)
    return far_from_training(side, network.seen_side, "to about {} pixels before") if side else ""


def _confusion(model: Predicts, batch: Batch) -> Tensor:
    predictions = model.predict_all([image.permute(1, 2, 0).numpy() for image in batch.images])
    ids = torch.stack([torch.from_numpy(prediction.ids) for prediction in predictions])
    return confusion_matrix(batch.labels, ids, len(model.classes))


def _matched(classes: Sequence[str], source: Source, data: Path) -> tuple[list[int], tuple[str, ...]]:
    """The channel of every class of the folder, background for those the model does not know; and these by name."""
    known = {plain(name): channel for channel, name in enumerate(classes) if channel != BACKGROUND}
    if plain(source.classes[0]) in known:
        raise InputError(f"the first line of {data / 'classes.txt'} is '{source.classes[0]}': background comes first.")
    unknown = tuple(name for name in source.classes[1:] if plain(name) not in known)
    if len(unknown) == len(source.classes) - 1:
        raise InputError(
            f"the model knows no class of {data}: it knows {_listed(classes[1:])}, and classes.txt names "
            f"{_listed(unknown)}."
        )
    return [BACKGROUND, *(known.get(plain(name), BACKGROUND) for name in source.classes[1:])], unknown


def _table(channels: Sequence[int]) -> Tensor:
    """(256,) id of a mask → channel; 255 stays ignored."""
    table = torch.full((IGNORE + 1,), BACKGROUND)
    table[: len(channels)] = torch.tensor(channels)
    table[IGNORE] = IGNORE
    return table


def _which(source: Source, data: Path) -> str:
    """In words, the images that are scored; refuses a list of none, the only validation images that can be empty."""
    if not source.validation.given:
        seen = "the scores are too high if the model has learnt from some of them"
        return f"all of {data}, {source.validation.words}; {seen}"
    if not len(source.val):
        raise InputError(f"{data / 'val.txt'} names no image: name those to be scored on, or delete it.")
    return f"those of {data} {source.validation.words}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
