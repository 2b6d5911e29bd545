"""The statistics a model carries: gathered from its training images, and added to when it learns in closed form."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from incseg.batch import Batch
from incseg.config import DataConfig, RunConfig
from incseg.console import Console, percent, progress_of, publish
from incseg.curriculum.old_images import OldImages
from incseg.datasets import ReportProgress, Split, open_source
from incseg.datasets.class_names import channels_by_name
from incseg.datasets.scan import class_presence, in_threads, pixel_counts, refuse_unknown
from incseg.datasets.source import plain
from incseg.deploy.given_images import GivenImages, MaskLike
from incseg.errors import InputError
from incseg.images import ImageLike
from incseg.loading import WholeImages, whole_loader
from incseg.loading.reduced import reduced
from incseg.metrics import confusion_matrix, intersection_over_union, mean
from incseg.model_header import STATISTICS, refuse_statistics
from incseg.models.closed_form import METHOD as CLOSED_FORM
from incseg.models.closed_form import Statistics
from incseg.models.gather import Fit, feature_layout, gather, solved_head
from incseg.models.pretrained import original_encoder
from incseg.models.segmenter import Segmenter
from incseg.models.storage import TrainedModel, as_memory, save_memory, save_model, statistics_among
from incseg.models.tiles import predict_ids
from incseg.protocol import BACKGROUND, IGNORE
from incseg.run_folder import statistics_file

AnyModel = TypeVar("AnyModel", bound=TrainedModel)
# By the head.
TRAINED: dict[str, str] = {"softmax": RunConfig.model_fields["method"].default, "sigmoid": "ucd", "branched": "ssul"}
BATCH = 8  # images of one size that go through the network together
COMPARED = 100  # validation images at most on which two heads are compared


def choose_method(model: TrainedModel, *, has_old_images: bool = False) -> tuple[str, str]:
    """The method with which a model is extended unless a person chooses another, and one line that says why."""
    is_solved = model.segmenter.architecture.closed_form is not None
    trained = TRAINED[model.segmenter.architecture.head]
    if statistics_among(model.remembered()):
        instead = "" if is_solved else f" To train instead: --method {trained}, or another of 'incseg list methods'."
        return CLOSED_FORM, (
            "The model carries statistics of its training images, so the new classes are added in closed form, in "
            f"seconds ({CLOSED_FORM}).{instead}"
        )
    if is_solved and has_old_images:
        return CLOSED_FORM, f"The head of this model was solved in closed form, and so are new classes ({CLOSED_FORM})."
    if is_solved:
        place = f" ({statistics_file(model.path)})" if model.path is not None else ""
        raise InputError(
            f"the head of this model was solved in closed form, and its statistics are not beside it{place}: copy them "
            "there from where the model was made, or gather them again with 'incseg statistics MODEL --data DIR'."
        )
    return trained, (
        f"The model carries no statistics of its training images, so it is trained ({trained}). While these images are "
        "at hand, 'incseg statistics MODEL --data DIR' gathers them, and an extension then takes seconds."
    )


def learn(model: AnyModel, images: Sequence[ImageLike], masks: Sequence[MaskLike], names: Sequence[str]) -> AnyModel:
    """The model with more classes, learnt in closed form; see :meth:`incseg.deploy.model.Model.learn`."""
    _refuse_names(model, names)
    statistics, fit = required_statistics(model)
    given = GivenImages.read(images, masks)
    table = _table([BACKGROUND, *range(len(model.classes), len(model.classes) + len(names))])
    labelled = Labelled(reduced(given, model.segmenter.architecture.longest_side), ("background", *names), table)
    segmenter = copy.deepcopy(model.segmenter).to(statistics.gram.device)
    statistics = labelled.added_to(statistics, fit, segmenter)
    known = len(model.classes)
    if unseen := statistics.unseen(range(known, known + len(names))):
        said = statistics.not_learnt([names[channel - known] for channel in unseen])
        warnings.warn(said, stacklevel=3)  # where the model was asked to learn
    sizes = [*segmenter.classifier.head_sizes, len(names)]
    record = {
        "new_classes": list(names), "method": CLOSED_FORM, "data": "given in Python", "images": given.checksum,
        "training_images": len(given),
    }  # fmt: skip
    return with_statistics(
        model,
        statistics,
        fit,
        classes=(*model.classes, *names),
        head_sizes=sizes,
        history=[*model.history, record],
    )


def with_statistics(
    model: AnyModel,
    statistics: Statistics,
    fit: Fit,
    *,
    classes: Sequence[str],
    head_sizes: Sequence[int],
    history: Sequence[Mapping[str, Any]],
) -> AnyModel:
    """The same network with the head that these statistics give; it has no file yet."""
    segmenter = copy.deepcopy(model.segmenter)
    segmenter.use_head(solved_head(statistics, list(head_sizes), fit.ridge).to(model.device))
    return replace(
        model,
        segmenter=segmenter.eval(),
        classes=tuple(classes),
        history=list(history),
        path=None,
        memory=as_memory(statistics, fit, segmenter),
    )


def required_statistics(model: TrainedModel) -> tuple[Statistics, Fit]:
    """The statistics of a model, or what to do about it that it has none."""
    found = model.statistics()
    if found is None:
        raise InputError(
            f"{model.path or 'the model'} carries no statistics of its training images: gather them with "
            "'incseg statistics MODEL --data DIR' while these images are at hand."
        )
    return found


def gather_statistics(
    model: TrainedModel,
    data: Path,
    console: Console,
    *,
    weights: str = "none",
    overwrite: bool = False,
    workers: int = 0,
) -> None:
    """``incseg statistics``: gather them from a folder that labels all classes of a model, and write them beside it.

    With the ``weights`` with which its training began, the model keeps its encoder as it was then.
    """
    assert model.path is not None, "statistics lie beside the file of a model"
    file, remembered = statistics_file(model.path), model.remembered()
    there = statistics_among(remembered)
    if not overwrite:
        refuse_statistics(file, there)
    source = open_source("folder", data)
    for note in source.notes:
        console.say(note)
    table = _table(channels_by_name(source.classes, data, model.classes))
    class_presence(source.val, source.classes)  # refuses masks with ids of no class before the work begins
    segmenter = copy.deepcopy(model.segmenter).to(model.exact_device)
    # By the rules of those that it had; but whole images are seen here, never training crops.
    fit = replace(Fit.from_state({name.removeprefix(STATISTICS): tensor for name, tensor in there.items()}), crops=0)
    if weights != "none":
        segmenter.keep_original(_original(model, weights))
    statistics = _gathered(segmenter, source.train, source.classes, table, fit, console, workers)
    memory = as_memory(statistics, fit, segmenter)
    if weights != "none":  # first: a model that keeps its encoder needs no statistics, but these need the encoder
        save_model(segmenter, model.classes, model.path, model.history, model.colours)
        console.say(f"{model.path} keeps its encoder as it was before training.")
    save_memory({**remembered, **memory}, file)
    size = sum(tensor.nbytes for tensor in memory.values()) / 1e6
    publish(statistics=file, megabytes=round(size, 1))
    console.say(f"{file} {'is replaced' if there else 'is written'}: {size:.1f} MB, sums over cells and no image.")
    scored = WholeImages(source.val, range(min(len(source.val), COMPARED)), table)
    if len(scored):
        own = _mean_iou(segmenter, scored, len(model.classes), workers)
        segmenter.use_head(solved_head(statistics, [len(model.classes)], fit.ridge))
        solved = _mean_iou(segmenter, scored, len(model.classes), workers)
        publish(miou={"own_head": own, "closed_form_head": solved}, images=len(scored))
        console.say(
            f"mIoU on {len(scored)} validation images: {percent(own)} with the model's own head, which it keeps, and "
            f"{percent(solved)} with the closed-form head that an extension begins with."
        )


def _original(model: TrainedModel, weights: str) -> nn.Module | None:
    if model.segmenter.architecture.closed_form is not None:
        raise InputError(
            "the head of this model is solved already, on features that cannot become others: --weights is for models "
            "whose head was trained."
        )
    return original_encoder(model.segmenter, weights)


def from_old_images(model: AnyModel, folder: Path, most: int | None, console: Console) -> AnyModel:
    """The model with statistics of old images, at most ``most``; one that carries statistics needs none of them."""
    if statistics_among(model.remembered()):
        console.say(
            f"The images of {folder} are not used: the model carries statistics of the images it was trained on, and "
            "adding old images to them would count these twice."
        )
        return model
    old = OldImages.read(folder, DataConfig(replayed_images=most), model.classes)
    table = _table(channels_by_name(old.classes, folder, model.classes))
    fit, segmenter = Fit(), copy.deepcopy(model.segmenter).to(model.exact_device)
    statistics = _gathered(segmenter, old.split, old.classes, table, fit, console)
    console.say(f"The model has no statistics: they are gathered from {len(old.split)} images of {folder}.")
    return replace(model, memory={**model.remembered(), **as_memory(statistics, fit, segmenter)})


def _gathered(
    segmenter: Segmenter,
    split: Split,
    classes: Sequence[str],
    table: Tensor,
    fit: Fit,
    console: Console,
    workers: int = 0,
) -> Statistics:
    """Of images that label all classes of a model, with the features its own statistics would have."""
    layout = segmenter.architecture.closed_form or feature_layout(segmenter, sum(segmenter.classifier.head_sizes))
    with progress_of(f"gathering statistics from {len(split)} images", console) as advance:
        learnt_from = reduced(split, segmenter.architecture.longest_side)
        labelled = Labelled(learnt_from, classes, table, workers, advance)
        return labelled.added_to(Statistics.empty(layout, segmenter.mean.device), fit, segmenter)


@dataclass(frozen=True)
class Labelled:
    """Images with masks, and what the ids of these masks mean."""

    split: Split
    classes: Sequence[str]
    """By id, background first."""
    table: Tensor
    """(256,) id → channel of the model."""
    workers: int = 0
    """Processes that load images."""
    report_progress: ReportProgress | None = None

    def added_to(self, statistics: Statistics, fit: Fit, segmenter: Segmenter) -> Statistics:
        """Statistics with these images, and with those of their classes that were not yet known."""
        cells = self._pixels() / statistics.layout.stride**2
        roomy = statistics.with_classes(cells[statistics.num_classes :])
        return gather(segmenter, roomy, self._batches(), fit)

    def _pixels(self) -> Tensor:
        """(C,) float64, the pixels of each channel in all masks; refuses ids of no class, and classes nowhere shown."""
        total = np.zeros(IGNORE + 1, np.int64)
        for index, counts in enumerate(in_threads(partial(pixel_counts, self.split), len(self.split))):
            refuse_unknown(self.split, index, np.flatnonzero(counts).tolist(), self.classes)
            total += counts[: IGNORE + 1]
        for name, count in zip(self.classes[1:], total[1:], strict=False):
            if not count:
                raise InputError(f"no training image shows '{name}': there is nothing to learn it from.")
        by_channel = torch.zeros(IGNORE + 1, dtype=torch.float64).index_add(
            0, self.table, torch.from_numpy(total).double()
        )
        return by_channel[: int(self.table[: len(self.classes)].max()) + 1]

    def _batches(self) -> Iterator[Batch]:
        done, images = 0, WholeImages(self.split, range(len(self.split)), self.table)
        for batches in whole_loader(images, BATCH, self.workers):
            for batch in batches:
                yield batch
                done += len(batch.images)
                if self.report_progress is not None:
                    self.report_progress(done, len(images))


def _table(channels: Sequence[int]) -> Tensor:
    """(256,) id → channel, from the channels of the ids 0, 1, …; 255 stays ignored."""
    table = torch.full((IGNORE + 1,), BACKGROUND)
    table[: len(channels)] = torch.tensor(channels)
    table[IGNORE] = IGNORE
    return table


def _refuse_names(model: TrainedModel, names: Sequence[str]) -> None:
    """New classes need names of their own."""
    if isinstance(names, str) or not names:
        raise InputError("the names of the new classes are a list, in the order of their ids: names=['ring'].")
    taken, given = {plain(name): name for name in model.classes}, set[str]()
    for name in names:
        if not isinstance(name, str) or not name.strip() or len(name.splitlines()) > 1:
            raise InputError(f"every new class needs a name of one line, and one of {list(names)} has none.")
        if plain(name) in given:
            raise InputError(f"'{name}' is named twice: every new class needs a name of its own.")
        if plain(name) in taken:
            raise InputError(
                f"the model already knows '{taken[plain(name)]}': every new class needs a name of its own."
            )
        given.add(plain(name))
    if len(taken) + len(given) > IGNORE:
        raise InputError(f"there can be at most {IGNORE} classes with background.")


@torch.no_grad()
def _mean_iou(segmenter: Segmenter, images: WholeImages, num_classes: int, workers: int) -> float:
    """Over all classes but background."""
    total = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    for batches in whole_loader(images, BATCH, workers):
        for batch in batches:
            total += confusion_matrix(batch.labels, predict_ids(segmenter, batch.images).cpu(), num_classes)
    return mean(intersection_over_union(total)[1:])
