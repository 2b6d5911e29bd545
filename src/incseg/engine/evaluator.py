"""Scoring a model: one confusion matrix over all validation images, and the results derived from it."""

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from incseg.batch import Batch
from incseg.colours import Colours
from incseg.config import RunConfig
from incseg.curriculum.curriculum import Curriculum
from incseg.engine.cores import usable_cores
from incseg.errors import InputError, Note, refuse
from incseg.files import naming
from incseg.images import index_image
from incseg.loading import ScoredImages, whole_loader
from incseg.loading.remembered import ScoredMemory
from incseg.metrics import (
    complete_mean,
    confusion_matrix,
    domain_scores,
    foreground_miou,
    forgetting,
    intersection_over_union,
    mean,
    nan_if_none,
    none_if_nan,
    step_scores,
)
from incseg.models import Segmenter
from incseg.models.tiles import predict_ids
from incseg.protocol import BACKGROUND, Step
from incseg.sizes import TILE

SMALL = 2**19  # pixels: of smaller images more are scored at once on a GPU
PIXELS = 2**22  # counted at a time, so that large images need little memory


def score(segmenter: Segmenter, loader: Iterable[list[Batch]], counted_as: Tensor, device: torch.device) -> Tensor:
    """(C, C) int64 confusion counts on ``device``; the segmenter is put into evaluation mode.

    ``counted_as`` says as which channel a prediction of each channel counts; see :class:`ScoredImages`.
    """
    segmenter.eval()
    num_classes, counted_as = len(counted_as), counted_as.to(device)
    total = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)
    for batches in loader:
        for images, labels, *_ in batches:
            predictions = predict_ids(segmenter, images).flatten().split(PIXELS)
            for truth, predicted in zip(labels.flatten().split(PIXELS), predictions, strict=True):
                total += confusion_matrix(truth.to(device), counted_as[predicted.long()], num_classes)
    return total


def score_step(
    segmenter: Segmenter,
    curriculum: Curriculum,
    step: Step,
    config: RunConfig,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    note: Note | None = None,
    memory: ScoredMemory | None = None,
) -> Tensor:
    """(N, 2, C, C) int64 confusion counts of this process's share of the N collections that a step is scored on.

    The first of the two are of all images, the second of those that label every class known: only there is background
    what the masks call background. An image that cannot be read is refused, or left to ``note`` and left out. With a
    ``memory`` images are read from their files only the first time, if they are not too many.
    """
    classes, found = step.num_classes, []
    for images in curriculum.scored_images(step):
        batch_size = _batch_size(images, config.engine.score_batch_size, device)
        # By the number of an image and not by its place, so that it stays with its process in later steps.
        share = [place for place, index in enumerate(images.indices) if index % world_size == rank]
        kept = memory.kept(images, share) if memory is not None else None
        workers = loading_processes(config) if kept is None else 0
        loader = whole_loader(images if kept is None else kept, batch_size, workers, share, note)
        counts = score(segmenter, loader, images.counted_as(classes), device)
        found.append(torch.stack([counts, counts if images.labels_all(classes) else torch.zeros_like(counts)]))
    return torch.stack(found)


def _batch_size(images: ScoredImages, wanted: int, device: torch.device) -> int:
    """Of images larger than a tile only as many as tiles would fill: they are segmented one by one in any case.

    Of small ones more, on a GPU: a batch that does not fill it takes as long as one that does, and far longer if other
    runs keep it busy.
    """
    largest = max((height * width for height, width in images.usual_shapes()), default=TILE**2)
    if largest > TILE**2:
        return max(1, wanted * TILE**2 // largest)
    return max(wanted, wanted * SMALL // largest) if device.type == "cuda" else wanted


def loading_processes(config: RunConfig) -> int:
    """As many as the configuration asks for, but at most one per core that this process may use.

    A process that may use all cores of the machine shares them with those of the other devices; a scheduler gives each
    its own.
    """
    cores = usable_cores()
    return min(config.data.workers, cores if cores < (os.cpu_count() or 1) else max(1, cores // config.engine.devices))


def save_pictures(
    segmenter: Segmenter,
    names: Sequence[str],
    images: ScoredImages,
    folder: Path,
    colours: Colours,
    note: Note | None = None,
) -> None:
    """For each image: itself, its ground truth and the prediction, as ``NAME.{image.jpg,truth.png,prediction.png}``."""
    folder.mkdir(parents=True, exist_ok=True)
    segmenter.eval()
    for position, given in enumerate(names):
        name = re.sub(r"[/\\]", "_", given)  # an image may lie in a subfolder; its name must not lead out of this one
        try:
            image, truth, *_ = images[position]
        except InputError as error:
            (note or refuse)(str(error))
            continue
        prediction = predict_ids(segmenter, image[None])[0].cpu()
        with naming(folder):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{name}.image.jpg", quality=92)
            index_image(truth.numpy().astype(np.uint8), colours).save(folder / f"{name}.truth.png")
            index_image(prediction.numpy(), colours).save(folder / f"{name}.prediction.png")


def side_by_side(folder: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Names and (H, 3W, 3) pictures of what :func:`save_pictures` left: image, ground truth, prediction."""
    for path in sorted(folder.glob("*.image.jpg")):
        name = path.name.removesuffix(".image.jpg")
        files = (path, folder / f"{name}.truth.png", folder / f"{name}.prediction.png")
        yield name, np.concatenate([np.asarray(Image.open(file).convert("RGB")) for file in files], axis=1)


def step_entry(
    step: Step,
    classes: Sequence[str],
    images: int,
    counts: Tensor,
    scored: int | None = None,
    domains: Sequence[Sequence[str]] = (),
    unlabelled: Collection[int] = (),
) -> dict[str, Any]:
    """The scores of one step, learnt from ``images`` and scored on ``scored``; classes by name, missing values None.

    ``counts`` are those of :func:`score_step`. Background is scored on images that label every class: elsewhere it may
    be any class that the masks do not label. ``unlabelled`` are the channels that no masks label; a group with one of
    them has no mean. In a domain protocol ``domains`` are the names of those of each step so far, to which the
    collections belong, and each collection has a score of its own.
    """
    confusion, complete = counts.sum(dim=0)
    iou = intersection_over_union(confusion)
    iou[BACKGROUND] = intersection_over_union(complete)[BACKGROUND]
    iou = [math.nan if channel in unlabelled else value for channel, value in enumerate(iou)]
    shown = torch.cat([complete[:1], confusion[1:]])
    scores, by_domain = step_scores(iou, step, unlabelled), {}
    if step.domains:
        scores |= domain_scores(counts[:, 0])
        found = [none_if_nan(foreground_miou(each)) for each in counts[:, 0]]
        by_domain["domains"] = [
            {"names": list(names), "miou": miou} for names, miou in zip(domains, found, strict=True)
        ]
    return {
        "step": step.index,
        "new_classes": [classes[c] for c in step.new],
        "training_images": images,
        "scored_images": scored,
        **by_domain,
        "miou": {name: none_if_nan(value) for name, value in scores.items()},
        "iou": {classes[c]: none_if_nan(value) for c, value in enumerate(iou)},
        "confusion": shown.tolist(),
    }


def step_history(header: Mapping[str, Any], entry: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a saved model says of a step it has learnt: classes, method, data, how it was trained, and its scores.

    Args:
        header: the head of ``result.json``.
        entry: the scores of the step.
        facts: settings of the training, the data's name and its number of validation images.
    """
    kept = {name: entry[name] for name in ("new_classes", "training_images", "miou", "iou")}
    return {**kept, "method": header["method"], "seed": header["seed"], **facts, **header["environment"]}


def number_scored(curriculum: Curriculum, step: Step) -> int:
    """How many images a step is scored on."""
    return sum(len(images) for images in curriculum.scored_images(step))


def _over_steps(entries: Sequence[Mapping[str, Any]], score: str) -> float | None:
    return none_if_nan(complete_mean(nan_if_none(entry["miou"][score]) for entry in entries))


def run_result(
    header: Mapping[str, Any],
    classes: Sequence[str],
    entries: Sequence[Mapping[str, Any]],
    unreadable: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The whole result: what was run, the scores of every step, their average and what was forgotten.

    ``unreadable`` says which files were left out, None where an unreadable file would have ended the run.
    """
    return {
        **header,
        "classes": list(classes),
        "steps": list(entries),
        "average_miou": _over_steps(entries, "all"),
        "average_miou_with_background": _over_steps(entries, "all_with_background"),
        "forgetting": _forgotten(classes, entries),
        **({} if unreadable is None else {"unreadable": list(unreadable)}),
    }


def _forgotten(classes: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What every class has lost; where steps bring domains, what all classes have lost on those of each earlier step.

    There is no mean where not all old classes were measured. With domains a class is scored on more of them in every
    step, so that its own scores cannot be compared.
    """
    if "domains" in entries[-1]:
        lost = forgetting([[nan_if_none(group["miou"]) for group in entry["domains"]] for entry in entries])
        return {"mean": none_if_nan(mean(lost)), "classes": {}, "domains": [none_if_nan(value) for value in lost]}
    history = [[nan_if_none(entry["iou"][name]) for name in classes if name in entry["iou"]] for entry in entries]
    lost = forgetting(history)
    by_class = {classes[c]: none_if_nan(value) for c, value in enumerate(lost) if c > 0}
    measured = entries[-1]["miou"]["old"] is not None
    return {"mean": none_if_nan(mean(lost[1:])) if measured else None, "classes": by_class}
