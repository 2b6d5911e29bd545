"""Models as sums: two that were extended from one base become one, and what a step added is taken away again.

Statistics are sums over cells, so those of several models add and subtract, each class under its name::

    merge:   S = S_A + S_B − S_base
    forget:  S = S − (S_after − S_before)        of the step that learnt the class
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from incseg.config import from_yaml
from incseg.datasets.class_names import known_class
from incseg.datasets.source import plain
from incseg.deploy.model import Model
from incseg.deploy.statistics import required_statistics, with_statistics
from incseg.errors import InputError
from incseg.models.closed_form import Statistics
from incseg.models.gather import Fit
from incseg.models.storage import TrainedModel, describe_model
from incseg.run_folder import RunFolder, run_with_steps

SomeModel = TypeVar("SomeModel", bound=TrainedModel)
NOTHING = 1e-9  # what is left of a column, as a share of it, that is rounding only


def merge(first: Model, second: Model, base: TrainedModel | None = None) -> Model:
    """One model of two that were extended in closed form from the same base; no image is needed.

    A class that both have added under one name is one class. With different classes the result is what extending the
    base by the images of both at once would give, to the rounding of products in float32: every step labels its
    background with the head of the base. A class that both have added is weighed in each by its own cells, and then the
    sums differ a little from those of all its images at once.

    Args:
        first: its new classes come first.
        second: of the same network.
        base: what both were extended from; None: step 0 of their runs.
    """
    base = base or _common_base(first, second)
    second, base = _spelt_as(second, first.classes), _spelt_as(base, first.classes)
    for model in (first, second):
        _require_same_network(model, base)
        if not set(base.classes) < set(model.classes):
            raise InputError(
                f"{model.path} does not add classes to those of {base.path} ({', '.join(base.classes[1:])}): two "
                "extensions of one base can be merged."
            )
    _require_same_rules(first, second)
    _require_different_images(first, second, base)
    from_second = [name for name in second.classes if name not in first.classes]
    classes = (*first.classes, *from_second)
    statistics, fit = _combined(classes, [(1, first), (1, second), (-1, base)])
    sizes = [*first.segmenter.classifier.head_sizes, *([len(from_second)] if from_second else [])]
    history = [*first.history, *_history_of(from_second, second.history), {"new_classes": [], "method": "merge"}]
    return with_statistics(first, statistics, fit, classes=classes, head_sizes=sizes, history=history)


@dataclass(frozen=True)
class Forgotten:
    """A model without some of its classes, and what could not be taken away."""

    model: Model
    remark: str
    """For the person and the model card."""


def forget(model: Model, names: Sequence[str], learnt_in: Sequence[Path] = ()) -> Forgotten:
    """A model without what the steps that learnt these classes added to it.

    Args:
        model: extended in closed form.
        names: classes that whole steps have learnt: what one step added cannot be told apart by class.
        learnt_in: the runs of these steps, several if it was merged from them; none: that of the model.
    """
    forgotten = list(dict.fromkeys(known_class(name, model.classes) for name in names))
    runs = _runs_of(model, learnt_in)
    steps = _steps_opened(model, forgotten, runs)
    terms: list[tuple[int, TrainedModel]] = [(1, model)]
    for before, after in steps:
        terms += [(-1, after), (1, before)]
    statistics, _ = _combined(model.classes, terms)
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
    places = ", ".join(str(run.path) for run in runs)
    return Forgotten(smaller, _remark(forgotten, left, places, has_others=has_others))


def _combined(classes: Sequence[str], terms: Sequence[tuple[int, TrainedModel]]) -> tuple[Statistics, Fit]:
    """Σ sign · statistics for these classes, by the rules of the first of them.

    Columns are matched by name; those of other classes are left out.
    """
    first, fit = required_statistics(terms[0][1])
    total = _by_name(first, terms[0][1].classes, classes)
    for sign, model in terms[1:]:
        other = _by_name(required_statistics(model)[0], model.classes, classes)
        if other.layout != total.layout or not torch.equal(other.reference.cpu(), total.reference.cpu()):
            raise InputError(
                f"the statistics of {model.path} and {terms[0][1].path} were gathered with other features or from "
                "another beginning: they cannot be added."
            )
        other = replace(other, gram=other.gram.to(total.gram), cross=other.cross.to(total.cross))
        total = replace(total.plus(other, sign), cells=total.cells + sign * other.cells.to(total.cells))
    return total, fit


def _by_name(statistics: Statistics, classes: Sequence[str], onto: Sequence[str]) -> Statistics:
    """The same sums with the columns of the classes ``onto``; 0 for one that it does not know."""
    kept = [channel for channel, name in enumerate(classes) if name in onto]
    places = [onto.index(classes[channel]) for channel in kept]
    cross, cells = statistics.cross.new_zeros(statistics.layout.width, len(onto)), statistics.cells.new_zeros(len(onto))
    cross[:, places], cells[places] = statistics.cross[:, kept], statistics.cells[kept]
    return replace(statistics, cross=cross, cells=cells)


def _spelt_as(model: SomeModel, names: Sequence[str]) -> SomeModel:
    """The same model with its classes under these names where only case or spaces differ."""
    spelling = {plain(name): name for name in names}
    return replace(model, classes=tuple(spelling.get(plain(name), name) for name in model.classes))


def _common_base(first: TrainedModel, second: TrainedModel) -> TrainedModel:
    """Step 0 of the runs that extended two models, if it is the same."""
    bases = []
    for model in (first, second):
        place = RunFolder.holding(model.path) if model.path is not None else None
        if place is None:
            raise InputError(f"{model.path} is not the step of a run: name the model it was extended from with --base.")
        bases.append(TrainedModel.open(place[0].path, 0, "cpu"))
    one, two = bases
    sums = [required_statistics(base)[0] for base in bases]
    if (
        one.classes != two.classes
        or not _same_network(one, two)
        or sums[0].layout != sums[1].layout
        or not (torch.equal(sums[0].gram, sums[1].gram) and torch.equal(sums[0].cross, sums[1].cross))
    ):
        raise InputError(
            f"the runs of {first.path} and {second.path} did not begin with the same model: name the one that both "
            "were extended from with --base."
        )
    return one


def _require_same_rules(first: TrainedModel, second: TrainedModel) -> None:
    """Refuse to add what was counted in different ways."""
    fit, other = required_statistics(first)[1], required_statistics(second)[1]
    differing = [field.name for field in fields(fit) if getattr(fit, field.name) != getattr(other, field.name)]
    if differing:
        raise InputError(
            f"{first.path} and {second.path} were extended with different settings of the closed form "
            f"({', '.join(differing)}): extend one of them again with the other's --analytic.… and merge them then."
        )


def _require_different_images(first: TrainedModel, second: TrainedModel, base: TrainedModel) -> None:
    """Refuse to count images twice: those of all that two models have learnt, or of a step that both begin with."""
    (one, _), (two, _) = required_statistics(first), required_statistics(second)
    if torch.equal(one.gram, two.gram.to(one.gram)):
        raise InputError(f"{first.path} and {second.path} have learnt from the same images, which would count twice.")
    cells = [
        dict(zip(model.classes, sums.cells.tolist(), strict=True)) for model, sums in ((first, one), (second, two))
    ]
    shared = [name for name in first.classes if name in second.classes and name not in base.classes]
    alike = [name for name in shared if cells[0][name] == cells[1][name] > 0]
    if alike := [name for name in alike if not _told_apart(*(_record_of(name, each) for each in (first, second)))]:
        raise InputError(
            f"{first.path} and {second.path} have learnt {', '.join(alike)} from the same images, which would count "
            "twice: name the model that knew it first, from which both were extended, with --base."
        )


def _record_of(name: str, model: TrainedModel) -> Mapping[str, Any]:
    """What a model says of the step that learnt a class; nothing if it does not say."""
    found = (record for record in model.history if plain(name) in map(plain, record["new_classes"]))
    return next(found, {})


def _told_apart(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two steps are known to have seen other images, though as many pixels were labelled."""
    return "images" in one and "images" in two and one["images"] != two["images"]


def _require_same_network(model: TrainedModel, other: TrainedModel) -> None:
    if not _same_network(model, other):
        raise InputError(
            f"{model.path} and {other.path} are different networks: only statistics of the same network add up."
        )


def _same_network(model: TrainedModel, other: TrainedModel) -> bool:
    """Whether all below the head is equal."""
    one, two = _network(model), _network(other)
    return one.keys() == two.keys() and all(torch.equal(one[name].cpu(), two[name].cpu()) for name in one)


def _network(model: TrainedModel) -> dict[str, Tensor]:
    state = model.segmenter.state_dict()
    return {name: tensor for name, tensor in state.items() if not name.startswith("classifier.")}


def _runs_of(model: TrainedModel, learnt_in: Sequence[Path]) -> list[RunFolder]:
    """The runs in which classes were learnt, each once."""
    if learnt_in:
        places = {path.resolve(): path for path in reversed(learnt_in)}  # as first named
        return [run_with_steps(place, "--learnt-in") for place in reversed(places.values())]
    place = RunFolder.holding(model.path) if model.path is not None else None
    if place is None:
        raise InputError(
            f"{model.path} is not the step of a run: name the run in which the class was learnt with --learnt-in RUN."
        )
    return [place[0]]


def _steps_opened(
    model: TrainedModel, names: Sequence[str], runs: Sequence[RunFolder]
) -> list[tuple[TrainedModel, TrainedModel]]:
    """The models before and after each step that learnt some of these classes, the last step first."""
    found = []
    for run, index in set().union(*(_steps_that_learnt(names, run) for run in runs)):
        opened = (TrainedModel.open(run.path, step, "cpu") for step in (index - 1, index))
        before, after = (_spelt_as(each, model.classes) for each in opened)
        _require_same_network(after, model)
        _require_whole_step(after, before, model, names)
        found.append((before, after))
    return sorted(found, key=lambda step: (-len(step[1].classes), str(step[1].path)))


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
        own = _identity(_record_of(name, model))
        if "miou" in own and not any(_identity(_record_of(name, step)) == own for step in steps):
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
                "--learnt-in RUN RUN."
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
            f"'{name}' was known before {run.path} began: name the run that learnt it with --learnt-in RUN."
        )
    raise InputError(
        f"'{name}' was learnt in step 0 of {run.path}, together with the network itself, and cannot be subtracted: "
        "only training again without it forgets it."
    )


def _require_whole_step(
    after: TrainedModel, before: TrainedModel, model: TrainedModel, forgotten: Sequence[str]
) -> None:
    """The sums of a step do not tell its classes apart."""
    learnt = [name for name in after.classes if name not in before.classes]
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


def _history_of(names: Sequence[str], history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The steps that learnt these classes, of which each names only those of them."""
    kept = [(record, [name for name in record["new_classes"] if name in names]) for record in history]
    return [{**record, "new_classes": new} for record, new in kept if new]


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
