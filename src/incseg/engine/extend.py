"""``incseg extend``: a trained model and a folder of new classes become a model that knows both; no old data needed."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from safetensors.torch import load_file

from incseg import methods
from incseg.config import ModelConfig, RunConfig, from_yaml, load_recipe, merge
from incseg.console import Console, Table, percent
from incseg.curriculum.extension import BACKGROUND_NAMES, plain, refuse_clashes
from incseg.datasets import Source, open_source
from incseg.datasets.folder import LAYOUT
from incseg.deploy.model import Model, open_model
from incseg.deploy.model_card import write_card
from incseg.engine import assembly as build
from incseg.engine.first_step import GivenModel
from incseg.errors import InputError
from incseg.loading.batches import batches_per_epoch
from incseg.metrics import mean
from incseg.models.segmenter import STRIDE
from incseg.run_folder import Run

METHOD = "mib+ucd"
EPOCHS = 30  # the paper's, as long as that is neither too few nor too many iterations
FEWEST, MOST = 800, 6000
SMALLEST_CROP, LARGEST_CROP = 96, 512
LEARNING_RATE = 0.01  # the paper's of step 0, for a model that does not say with which it was trained
# An extension's rate is SHARE/iterations of that of step 0, within limits: a tenth in long ones, as in the paper. In
# short ones a tenth teaches nothing: ResNet-18 on 80 images had an IoU of 0 on new classes after 400 iterations at a
# tenth, and of 24 % after 800 at half; the old classes were kept in both.
SHARE, LEAST_SHARE, MOST_SHARE = 400, 0.1, 0.5
FIXED = {
    "model": "the network is the given model's",
    "data.root": "the folder is given with --data",
    "data.validation": "the folder is given with --validation",
    "data.known": "the classes known so far are the given model's",
    "data.class_order": "new classes are learnt in the order of classes.txt",
}


def extend(
    model: Model | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    method: str = METHOD,
    validation: str | Path | None = None,
    seed: int = 42,
    settings: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> Model:
    """Teach a model the classes of a folder, keeping those it knows; killed, the same call goes on where it was.

    Args:
        model: a model, or where one lies; it stays as it is.
        data: a folder with ``images/``, ``masks/`` and ``classes.txt`` of the new classes only.
        out: the folder of the run, itself a model then.
        method: a method or a sum of methods.
        validation: a folder of the same layout on which to measure old or new classes, matched by name.
        seed: every random choice follows from it.
        settings: any others, as in ``{"optim": {"epochs": 20}}``.
        console: where to report.
    """
    console = console or Console()
    given = model if isinstance(model, Model) else open_model(model, device="cpu")
    for option, place in (("--data", data), ("--validation", validation)):
        if place is not None and not Path(place).is_dir():
            raise InputError(f"{option} {place} is not a folder; it must hold {LAYOUT}.")
    source = open_source("folder", Path(data))
    refuse_clashes(given.classes, source)
    config = choose_settings(given, source, Path(data), method, seed, validation, settings or {})
    _announce(given, source, config, console)
    build.train(config, Path(out), None, console, _given(given))
    extended = open_model(Path(out), device=str(given.device))
    rank_zero_only(write_card)(extended, Path(out), before_and_after(Path(out)))
    return extended


def choose_settings(
    model: Model,
    source: Source,
    data: Path,
    method: str,
    seed: int,
    validation: str | Path | None,
    settings: Mapping[str, Any],
) -> RunConfig:
    """Settings that fit the data's size and the model's past, under what the person has chosen."""
    for name, reason in FIXED.items():
        section, _, key = name.partition(".")
        if section in settings and (not key or key in settings[section]):
            raise InputError(f"--{name} cannot be set here: {reason}.")
    trained = model.history[-1] if model.history else {}
    batch_size = settings.get("optim", {}).get("batch_size") or min(max(2, len(source.train)), 8)
    per_epoch = batches_per_epoch(len(source.train), batch_size) if isinstance(batch_size, int) else 1
    iterations = min(max(EPOCHS * per_epoch, FEWEST), MOST)
    rate = trained.get("learning_rate", LEARNING_RATE)
    share = min(max(SHARE / iterations, LEAST_SHARE), MOST_SHARE)
    architecture = model.segmenter.architecture
    chosen = {
        "method": method,
        "seed": seed,
        "data": {
            "root": data,
            "validation": None if validation is None else Path(validation),
            "known": model.classes,
            "crop_size": trained.get("crop_size") or _crop_size(source),
        },
        "model": {**architecture.model_dump(include=set(ModelConfig.model_fields)), "weights": "none"},
        "optim": {
            "epochs": -(-iterations // per_epoch),
            "batch_size": batch_size,
            "learning_rate": rate,  # of no use here, but for the next extension
            "incremental_learning_rate": rate * share,
        },
    }
    task = f"{len(model.classes) - 1}-{len(source.classes) - 1}"
    return load_recipe(f"folder/{task}/overlapped", merge(chosen, settings))


def _crop_size(source: Source) -> int:
    """About the side of the folder's images, so that they are learnt at the scale at which they will be seen."""
    looked_at = range(0, len(source.train), max(1, len(source.train) // 16))
    sides = [math.sqrt(math.prod(source.train.mask(index).shape)) for index in looked_at]
    typical = sorted(sides)[len(sides) // 2] if sides else LARGEST_CROP
    return STRIDE * round(min(max(typical, SMALLEST_CROP), LARGEST_CROP) / STRIDE)


@rank_zero_only
def _announce(model: Model, source: Source, config: RunConfig, console: Console) -> None:
    """One line on what will happen; and what was taken for background, if its name does not say so."""
    first = source.classes[0]
    if plain(first) not in BACKGROUND_NAMES and plain(first) != plain(model.classes[0]):
        console.say(f"'{first}', the first line of classes.txt, is taken for the background.")
    optim = config.optim
    console.say(
        f"{len(model.classes) - 1} classes + {', '.join(source.classes[1:])}: {config.method} on {len(source.train)} "
        f"images, {optim.epochs} epochs of {batches_per_epoch(len(source.train), optim.batch_size)} iterations, batch "
        f"{optim.batch_size}, crops of {config.data.crop_size}, learning rate {optim.incremental_learning_rate:g}"
    )


def _given(model: Model) -> GivenModel:
    """The network, and if it lies in a run, what that run's method remembers."""
    memory, remembered_by = {}, ""
    if model.path is not None:
        remembered = model.path.with_name("memory.safetensors")
        config = model.path.parent.parent / "config.yaml"
        if remembered.is_file() and config.is_file():
            run = from_yaml(config)
            memory, remembered_by = load_file(remembered), methods.parse(run.method, run.settings).first_step
    return GivenModel(model.segmenter, model.history, memory, remembered_by)


def before_and_after(run: Path) -> Table:
    """IoU per class of the given and of the extended model, on whatever was labelled to measure it."""
    result = Run.read(run)
    steps, new = result.steps, set(result.steps[-1]["new_classes"])
    rows = [[name, percent(result.iou(0, name)), percent(result.iou(-1, name))] for name in result.classes]
    for title, group in [
        ("mean of old classes", [name for name in result.classes[1:] if name not in new]),
        ("mean of new classes", [name for name in result.classes[1:] if name in new]),
    ]:
        rows.append([title, *(percent(mean(result.iou(step, name) for name in group)) for step in (0, -1))])
    unseen = [name for name in result.classes[1:] if steps[-1]["iou"][name] is None]
    note = (
        f"No validation image labels {', '.join(unseen)}: give some with --validation DIR to see whether "
        "they were kept."
        if unseen
        else ""
    )
    return Table(f"{run}: IoU before and after (%)", ["class", "before", "after"], rows, note)
