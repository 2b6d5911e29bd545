"""``incseg extend``: teach a trained model the classes of a folder, without the data it was trained on."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only

from incseg import methods
from incseg.config import DataConfig, Network, RunConfig, load_recipe, merge
from incseg.console import Console, Table, is_rank_zero, percent
from incseg.datasets import Source, open_source
from incseg.datasets.class_names import new_classes
from incseg.datasets.folder import LAYOUT
from incseg.datasets.source import BACKGROUND_NAMES, plain
from incseg.engine.admission import check_extension_settings
from incseg.engine.agreement import agreement
from incseg.engine.assembly import train
from incseg.engine.first_step import GivenModel, remembered_by
from incseg.errors import InputError
from incseg.loading import batches_per_epoch
from incseg.loading.reduced import reduced, usual_shapes
from incseg.metrics import mean
from incseg.models.closed_form import METHOD as CLOSED_FORM
from incseg.models.storage import TrainedModel
from incseg.results import Run
from incseg.run_folder import RunFolder, model_name, read_json, write_json
from incseg.sizes import STRIDE

EPOCHS = 30  # the paper's, as long as that is neither too few nor too many iterations
FEWEST, MOST = 800, 6000
LARGEST_BATCH, FEWEST_PER_EPOCH = 8, 4
SMALLEST_CROP, LARGEST_CROP = 96, 512
MISSPELT = 0.85  # as alike as this are 'motorbyke' and 'motorbike', and not 'cat' and 'car'
LEARNING_RATE = 0.01  # the paper's of step 0, for a model that does not say with which it was trained
# An extension's rate is SHARE/iterations of that of step 0, within limits: a tenth in long ones, as in the paper. In
# short ones a tenth teaches nothing: ResNet-18 on 80 images had an IoU of 0 on new classes after 400 iterations at a
# tenth, and of 24 % after 800 at half; the old classes were kept in both.
SHARE, LEAST_SHARE, MOST_SHARE = 400, 0.1, 0.5


def extend(
    model: TrainedModel,
    data: Path,
    out: Path,
    *,
    method: str,
    validation: Path | None,
    replay: Path | None = None,
    memory: int | None = None,
    seed: int,
    settings: Mapping[str, Any],
    console: Console,
) -> None:
    """Train a model on the classes of a folder, keeping those it knows; see :func:`incseg.extend`."""
    for option, place in (("--data", data), ("--validation", validation)):
        if place is not None and not place.is_dir():
            raise InputError(f"{option} {place} is not a folder; it must hold {LAYOUT}.")
    source = open_source("folder", data, _reading(settings))
    old = {"replay": replay, "replayed_images": memory}
    config = choose_settings(model, source, data, method, seed, validation, settings, old)
    solves = methods.parse(config.method, config.settings).solves
    if not solves:
        _ = model.segmenter.trained_head  # refuses a head that cannot be trained
    _announce(model, source, config, solves, console)
    if solves and settings.get("optim") and is_rank_zero():
        console.say("--optim.… has no effect here: the step is solved, not trained.")
    train(config, out, None, console, _given(model))
    if is_rank_zero():
        folder = RunFolder(out)
        found = agreement(folder, config, model.colours, console)
        write_json(folder.result, {**read_json(folder.result), "agreement": found})


def _reading(settings: Mapping[str, Any]) -> DataConfig:
    """The settings on how to read the folder, which is needed before the others can be chosen."""
    given = {name: value for name, value in settings.get("data", {}).items() if name in DataConfig.READING}
    return load_recipe("folder/1-1/overlapped", {"data": given}).data


def choose_settings(
    model: TrainedModel,
    source: Source,
    data: Path,
    method: str,
    seed: int,
    validation: Path | None,
    settings: Mapping[str, Any],
    old: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Settings that fit the data's size and the model's history, with those that the person has chosen on top.

    ``old`` are the settings on old images to replay. They take half of every batch, and the new images are seen as
    often as without them: an epoch has then twice as many iterations.
    """
    check_extension_settings(settings)
    trained = model.history[-1] if model.history else {}
    longest_side = model.segmenter.architecture.longest_side
    batch_size = settings.get("optim", {}).get("batch_size") or _batch_size(len(source.train))
    per_epoch = batches_per_epoch(len(source.train), batch_size) if isinstance(batch_size, int) else 1
    iterations = min(max(EPOCHS * per_epoch, FEWEST), MOST)
    rate = trained.get("learning_rate", LEARNING_RATE)
    share = min(max(SHARE / iterations, LEAST_SHARE), MOST_SHARE)
    network = model.segmenter.architecture.model_dump(include=set(Network.model_fields))
    chosen = {
        "method": method,
        "seed": seed,
        "data": {
            "root": data,
            "validation": validation,
            "known": model.classes,
            **(old or {}),
            "crop_size": trained.get("crop_size") or _crop_size(source, longest_side),
            "longest_side": longest_side,
        },
        "model": {**network, "weights": "none"},
        "optim": {
            "epochs": -(-iterations // per_epoch),
            "batch_size": batch_size,
            "learning_rate": rate,  # unused here; the next extension reads it from the model's history
            "incremental_learning_rate": rate * share,
        },
    }
    task = f"{len(model.classes) - 1}-{len(new_classes(model.classes, source))}"
    config = load_recipe(f"folder/{task}/overlapped", merge({**chosen, **_rules(model, method)}, settings))
    _require_same_features(model, config)
    return config


def _rules(model: TrainedModel, method: str) -> dict[str, Any]:
    """Those by which the model's statistics were gathered, as settings: whoever adds to them follows them too."""
    found = model.statistics() if CLOSED_FORM in methods.summands(method) else None
    return {} if found is None else {CLOSED_FORM: asdict(found[1])}


def _require_same_features(model: TrainedModel, config: RunConfig) -> None:
    """Refuse other features than those of the statistics that an extension adds to."""
    found, given = model.statistics(), config.settings.get(CLOSED_FORM, {})
    if found is None:
        return
    for name in sorted(given.keys() - asdict(found[1]).keys()):  # what is no rule is a feature
        own = getattr(found[0].layout, name)
        if given[name] not in (None, own):
            raise InputError(
                f"--{CLOSED_FORM}.{name} {given[name]} is not possible here: the extension adds to the model's "
                f"statistics, which were gathered with {own}. Other features are chosen when a model is trained, by "
                f"--method {CLOSED_FORM}."
            )


def _batch_size(images: int) -> int:
    """At most LARGEST_BATCH, and small enough that an epoch of few images is several iterations."""
    return min(max(images // FEWEST_PER_EPOCH, 2), LARGEST_BATCH)


def _per_epoch(images: int, batch_size: int, replays: bool) -> int:
    """Iterations in which the folder's own images are all seen."""
    return batches_per_epoch(images, batch_size - batch_size // 2 if replays else batch_size)


def _crop_size(source: Source, longest_side: int | None) -> int:
    """About the side of the folder's images, so that training sees objects at the scale that prediction sees."""
    sides = [math.sqrt(math.prod(shape)) for shape in usual_shapes(reduced(source.train, longest_side), most=16)]
    typical = sorted(sides)[len(sides) // 2] if sides else LARGEST_CROP
    return STRIDE * round(min(max(typical, SMALLEST_CROP), LARGEST_CROP) / STRIDE)


@rank_zero_only
def _announce(model: TrainedModel, source: Source, config: RunConfig, solves: bool, console: Console) -> None:
    """Print the chosen settings in one line; and which class is taken for background, if its name does not say so."""
    first = source.classes[0]
    if plain(first) not in BACKGROUND_NAMES and plain(first) != plain(model.classes[0]):
        console.say(f"'{first}', the first line of classes.txt, is taken for the background.")
    optim, images, replays = config.optim, len(source.train), config.data.replay is not None
    epochs = optim.epochs_at(1)
    how = (
        f", one pass over {images} images, no training"
        if solves
        else f" on {images} images, {epochs * _per_epoch(images, optim.batch_size, replays)} iterations "
        f"({epochs} epochs), batch {optim.batch_size}{', half of it old images' if replays else ''}, "
        f"crops of {config.data.crop_size}, learning rate {optim.incremental_learning_rate:g}"
    )
    new = new_classes(model.classes, source)
    console.mention(f"{len(model.classes) - 1} classes + {', '.join(new)}: {config.method}{how}")
    for name in new:
        if meant := difflib.get_close_matches(name, model.classes[1:], 1, MISSPELT):
            console.say(f"'{name}' is a new class; '{meant[0]}', which the model knows, is written otherwise.")
    labelled_too = [name for name in source.classes[1:] if name not in new]
    if labelled_too:
        console.mention(f"{', '.join(labelled_too)}: known to the model, and learnt further where it is labelled.")
    if config.data.complete:
        console.mention("Background of these images is taken as it is labelled: none of the known classes lies in it.")
    elif {plain(name) for name in model.classes[1:]} <= {plain(name) for name in labelled_too}:
        console.mention(
            "Known classes may lie in the background of these images. If every one of them is labelled wherever it is "
            "shown, say so with --data.complete true: then background is learnt as it is labelled."
        )


def solves(method: str, settings: Mapping[str, Any]) -> bool:
    """Whether a method adds classes in closed form instead of training."""
    named = {name: values for name, values in settings.items() if name in methods.method_names()}
    return methods.parse(method, named).solves


def _given(model: TrainedModel) -> GivenModel:
    """The network with all that is remembered of its training; and for the model of a run, by which method."""
    name = f"{len(model.classes) - 1} classes" if model.path is None else model_name(model.path)
    remembered = "" if model.path is None else remembered_by(model.path)
    return GivenModel(model.segmenter, model.history, model.remembered(), remembered, model.colours, name)


def before_and_after(run: Path) -> Table:
    """IoU per class of the given and of the extended model, on the validation images that label the class.

    Background is scored on images that label every class the model knows, and has a dash where there are none.
    """
    result = Run.read(run)
    steps, new = result.steps, set(result.steps[-1]["new_classes"])
    rows = [[name, percent(result.iou(0, name)), percent(result.iou(-1, name))] for name in result.classes]
    unseen = [name for name in result.classes[1:] if steps[-1]["iou"][name] is None]
    recalls = [result.background_recall(step) for step in (0, -1)]
    rows.insert(1, [f"{result.classes[0]}, recall", *map(percent, recalls)])
    for title, group in [
        ("old classes", [name for name in result.classes[1:] if name not in new]),
        ("new classes", [name for name in result.classes[1:] if name in new]),
    ]:
        measured = sum(name not in unseen for name in group)
        which = f"{measured} of {len(group)} {title}" if 0 < measured < len(group) else title
        means = (percent(mean(result.iou(step, name) for name in group)) for step in (0, -1))
        rows.append([f"mean of {which}", *means])
    unknown = [result.classes[0]] if math.isnan(recalls[-1]) and not unseen else []
    notes = [
        f"No validation image labels {', '.join(unseen)}: give some with --validation DIR to see how well "
        f"they and {result.classes[0]} are known."
        if unseen
        else "",
        "No validation image labels every class, so background cannot be scored: give some with --validation DIR."
        if unknown
        else "",
        result.warning,
    ]
    note = " ".join(filter(None, notes))
    return Table(f"{run}: IoU before and after (%)", ["class", "before", "after"], rows, note)
