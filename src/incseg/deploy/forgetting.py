"""What a step added to a model is taken away again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from incseg.config import from_yaml
from incseg.datasets.class_names import known_class
from incseg.datasets.source import plain
from incseg.deploy.combine import combined, is_same_network, record_of, require_same_network, spelt_as
from incseg.deploy.model import Model
from incseg.deploy.statistics import required_statistics, with_statistics
from incseg.errors import InputError
from incseg.models.closed_form import Statistics
from incseg.models.gather import Fit
from incseg.models.storage import TrainedModel, describe_model
from incseg.run_folder import RunFolder, run_with_steps

NOTHING = 1e-9  # what is left of a column, as a share of it, that is rounding only


@dataclass(frozen=True)
class Forgotten:
    """A model without some of its classes, and what could not be taken away."""

    model: Model
    remark: str
    """For the person and the model card."""


def forget(
    model: Model, names: Sequence[str], learnt_in: Sequence[Path] = (), before: Sequence[TrainedModel] = ()
) -> Forgotten:
    """A model without what the steps that learnt these classes added to it.

    Args:
        model: extended in closed form.
        names: classes that whole steps have learnt: what one step added cannot be told apart by class.
        learnt_in: the runs of these steps, several if it was merged from them; none: that of the model. Of a step by
            ``Model.learn``, which leaves no run: the file of the model just after it; none: ``model`` itself.
        before: for such steps, the models just before each.
    """
    forgotten = list(dict.fromkeys(known_class(name, model.classes) for name in names))
    steps = _steps_opened(model, forgotten, learnt_in, before)
    terms: list[tuple[int, TrainedModel]] = [(1, model)]
    for earlier, after in steps:
        terms += [(-1, after), (1, earlier)]
    statistics, _ = combined(model.classes, terms)
    _require_own_steps(model, forgotten, [after for _, after in steps])
    _require_all_and_only_that(model, forgotten, statistics)
    channels = [channel for channel, name in enumerate(model.classes) if name not in forgotten]
    smaller = with_statistics(
        model,
        replace(statistics, cross=statistics.cross[:, channels], cells=statistics.cells[channels]),
        _rules_before(model, steps),
        classes=[model.classes[channel] for channel in channels],
        head_sizes=_remaining_sizes(model.segmenter.classifier.head_sizes, channels),
        history=[
            *_history_without(model.history, forgotten),
            {"new_classes": [], "method": f"forget {', '.join(forgotten)}"},
        ],
    )
    before_columns = required_statistics(model)[0].cross
    left = [name for name in forgotten if _is_left(statistics.cross, before_columns, model.classes.index(name))]
    has_others = any(name not in after.classes for name in smaller.classes for _, after in steps)
    return Forgotten(smaller, _remark(forgotten, left, _places(steps), has_others=has_others))


def _steps_opened(
    model: TrainedModel, names: Sequence[str], learnt_in: Sequence[Path], before: Sequence[TrainedModel]
) -> list[tuple[TrainedModel, TrainedModel]]:
    """The models before and after each step that learnt some of these classes, the last step first."""
    places = {path.resolve(): path for path in reversed(learnt_in)}  # each once, as first named
    named = list(reversed(places.values()))
    files = [path for path in named if before and not RunFolder(path).finished_steps]
    runs = [run_with_steps(path, "--learnt-in") for path in named if path not in files]
    if not before and not runs:
        runs = [_run_of(model)]
    taught = [TrainedModel.open(file, device="cpu") for file in files] if runs or files else [model]
    found = [(_just_before(after, before), after) for after in taught]
    for run, index in set().union(*(_steps_that_learnt(names, run) for run in runs)):
        earlier, after = (TrainedModel.open(run.path, step, "cpu") for step in (index - 1, index))
        found.append((earlier, after))
    spelt = [(spelt_as(earlier, model.classes), spelt_as(after, model.classes)) for earlier, after in found]
    for earlier, after in spelt:
        require_same_network(after, model)
        _require_whole_step(after, earlier, model, names)
    return sorted(spelt, key=lambda step: (-len(step[1].classes), str(step[1].path)))


def _run_of(model: TrainedModel) -> RunFolder:
    """The run that left a model."""
    place = RunFolder.holding(model.path) if model.path is not None else None
    if place is None:
        raise InputError(
            f"{model.path or 'the model'} is not the step of a run: name the run in which the class was learnt with "
            "--learnt-in RUN, or, if it was learnt in Python, the model of before with --before MODEL."
        )
    return place[0]


def _just_before(after: TrainedModel, models: Sequence[TrainedModel]) -> TrainedModel:
    """The one of some models that became another in one step, by what that says of its past."""
    for earlier in models:
        if list(earlier.history) == list(after.history[:-1]) and is_same_network(earlier, after):
            return earlier
    raise InputError(
        f"{after.path or 'the model'} did not become what it is in one step from "
        f"{' or '.join(str(earlier.path) for earlier in models)}: --before is the model as it was just before it "
        "learnt the class, and --learnt-in as it was just after."
    )


def _places(steps: Sequence[tuple[TrainedModel, TrainedModel]]) -> str:
    """Where a person finds what the steps left: runs, or files of models."""
    files = [after.path for _, after in steps if after.path is not None]
    held = [(file, RunFolder.holding(file)) for file in files]
    return ", ".join(dict.fromkeys(str(run[0].path if run else file) for file, run in held)) or "memory"


def _rules_before(model: TrainedModel, steps: Sequence[tuple[TrainedModel, TrainedModel]]) -> Fit:
    """Those by which the newest step that is left was learnt."""
    newest = model
    for before, after in steps:
        newest = before if after.classes == newest.classes else newest
    return required_statistics(newest)[1]


def _steps_that_learnt(names: Sequence[str], run: RunFolder) -> set[tuple[RunFolder, int]]:
    """Those of a run that learnt some of these classes; refuses a run that learnt none, or at a step 0."""
    known = [name for name in names if plain(name) in _knows(run, run.finished_steps[-1])]
    if not known:
        raise InputError(
            f"no step of {run.path} learnt {' or '.join(map(repr, names))}: name the run that did with --learnt-in RUN."
        )
    learnt = [name for name in known if plain(name) not in _knows(run, 0)]
    return {(run, _learnt_at(name, run)) for name in learnt or known}


def _knows(run: RunFolder, step: int) -> set[str]:
    """The classes of the model that a step left, plainly written."""
    return {plain(name) for name in describe_model(run.model(step)).classes}


def _require_own_steps(model: TrainedModel, forgotten: Sequence[str], learnt: Sequence[TrainedModel]) -> None:
    """Refuse to subtract what another run has learnt as the class."""
    for name in forgotten:
        steps = [step for step in learnt if name in step.classes]
        if not steps:
            raise InputError(f"none of the named runs learnt '{name}': name the one that did, too, with --learnt-in.")
        own = _identity(record_of(name, model))
        if own.keys() & {"miou", "images"} and not any(_identity(record_of(name, step)) == own for step in steps):
            places = ", ".join(str(step.path) for step in steps)
            raise InputError(
                f"{model.path} did not learn '{name}' in {places}: name the run that did, with --learnt-in RUN."
            )


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record of a step says that merging and forgetting leave as it is."""
    return {name: value for name, value in record.items() if name not in ("new_classes", "iou")}


def _require_all_and_only_that(model: TrainedModel, forgotten: Sequence[str], statistics: Statistics) -> None:
    """Refuse to take away less than what was labelled as a class, or more."""
    before = required_statistics(model)[0].cells
    for name in forgotten:
        channel = model.classes.index(name)
        left, rounding = float(statistics.cells[channel]), NOTHING * float(before[channel])
        if left > rounding:
            raise InputError(
                f"'{name}' was learnt elsewhere too, and those images would stay: name every run that learnt it, with "
                "--learnt-in RUN RUN, and for places that learnt it in Python the models of before and after, with "
                "--before MODEL MODEL and --learnt-in FILE FILE."
            )
        if left < -rounding:
            raise InputError(
                f"'{name}' was learnt from other images than those of the named runs: {model.path} does not hold all "
                "of them."
            )


def _learnt_at(name: str, run: RunFolder) -> int:
    """The step of a run that learnt a class; refuses what no subtraction can undo."""
    first = next(index for index in run.finished_steps if plain(name) in _knows(run, index))
    if first > 0:
        return first
    if run.config.is_file() and from_yaml(run.config).data.known is not None:
        raise InputError(
            f"'{name}' was known before {run.path} began: name the run that learnt it with --learnt-in RUN, or, if it "
            "was learnt in Python, the model of before with --before MODEL."
        )
    raise InputError(
        f"'{name}' was learnt in step 0 of {run.path}, together with the network itself, and cannot be subtracted: "
        "only training again without it forgets it."
    )


def _require_whole_step(
    after: TrainedModel, before: TrainedModel, model: TrainedModel, forgotten: Sequence[str]
) -> None:
    """Refuse a step that learnt none of the classes, or others too: its sums do not tell its classes apart."""
    learnt = [name for name in after.classes if name not in before.classes]
    if not set(learnt) & set(forgotten):
        raise InputError(f"{after.path or 'the model'} learnt {', '.join(learnt)} last, not {' or '.join(forgotten)}.")
    others = [name for name in learnt if name in model.classes and name not in forgotten]
    if others:
        raise InputError(
            f"{', '.join(name for name in learnt if name in forgotten)} was learnt together with {', '.join(others)}, "
            f"and what one step added cannot be told apart: forget all of them ({' '.join(learnt)}), or none."
        )


def _remaining_sizes(head_sizes: Sequence[int], channels: Sequence[int]) -> list[int]:
    """How many of these channels each step had added; steps of which nothing is left do not count."""
    ends = [sum(head_sizes[: index + 1]) for index in range(len(head_sizes))]
    sizes = [
        sum(end - size <= channel < end for channel in channels) for size, end in zip(head_sizes, ends, strict=True)
    ]
    return [size for size in sizes if size]


def _history_without(history: Sequence[Mapping[str, Any]], forgotten: Sequence[str]) -> list[dict[str, Any]]:
    """What a model says of its past, without the steps that learnt these classes and without their scores."""
    remaining = [record for record in history if not set(record["new_classes"]) & set(forgotten)]
    return [
        {**record, "iou": {name: iou for name, iou in record.get("iou", {}).items() if name not in forgotten}}
        for record in remaining
    ]


def _is_left(cross: Tensor, before: Tensor, channel: int) -> bool:
    """Whether cells that were not of the subtracted step had been given to a class."""
    return bool(cross[:, channel].norm() > NOTHING * before[:, channel].norm())


def _remark(forgotten: Sequence[str], left: Sequence[str], runs: str, *, has_others: bool) -> str:
    """What is gone and what is left, as it is."""
    sentences = [
        f"All that the images of {', '.join(forgotten)} added in {runs} is subtracted. The head is solved again, in "
        "closed form: a trained head that it had before its first extension does not come back."
    ]
    if left:
        sentences.append(
            f"Left of {', '.join(left)}: parts of other steps' images that the model took for it, or that were "
            "labelled so when it was known already; they stay in the sums as cells of no class."
        )
    if has_others:
        sentences.append(
            "Steps learnt after it, if any, took the labels of their background from a head that knew it; these stay."
        )
    return " ".join(sentences)
