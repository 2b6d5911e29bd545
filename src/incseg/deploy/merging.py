"""Two models that were extended from one base become one."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from incseg.deploy.combine import combined, is_same_network, record_of, require_same_network, spelt_as
from incseg.deploy.model import Model
from incseg.deploy.statistics import required_statistics, with_statistics
from incseg.errors import InputError
from incseg.models.storage import TrainedModel
from incseg.run_folder import RunFolder


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
    second, base = spelt_as(second, first.classes), spelt_as(base, first.classes)
    for model in (first, second):
        require_same_network(model, base)
        if not set(base.classes) < set(model.classes):
            raise InputError(
                f"{model.path} does not add classes to those of {base.path} ({', '.join(base.classes[1:])}): two "
                "extensions of one base can be merged."
            )
    _require_same_rules(first, second)
    _require_same_scale(first, second)
    _require_different_images(first, second, base)
    from_second = [name for name in second.classes if name not in first.classes]
    classes = (*first.classes, *from_second)
    statistics, fit = combined(classes, [(1, first), (1, second), (-1, base)])
    sizes = [*first.segmenter.classifier.head_sizes, *([len(from_second)] if from_second else [])]
    history = [*first.history, *_history_of(from_second, second.history), {"new_classes": [], "method": "merge"}]
    return with_statistics(first, statistics, fit, classes=classes, head_sizes=sizes, history=history)


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
        or not is_same_network(one, two)
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


def _require_same_scale(first: TrainedModel, second: TrainedModel) -> None:
    """Refuse to add what was seen at different sizes: one model can reduce images in one way only."""
    one, two = (model.segmenter.architecture.longest_side for model in (first, second))
    if one != two:
        sides = " and ".join("their own size" if side is None else f"a longest side of {side}" for side in (one, two))
        raise InputError(
            f"{first.path} and {second.path} see images at different sizes ({sides}): extend one of them again with "
            "the --data.longest-side of the other and merge them then."
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
    as_many = [name for name in shared if cells[0][name] == cells[1][name] > 0]
    if alike := [name for name in as_many if not _told_apart(record_of(name, first), record_of(name, second))]:
        raise InputError(
            f"{first.path} and {second.path} have learnt {', '.join(alike)} from the same images, which would count "
            "twice: name the model that knew it first, from which both were extended, with --base."
        )


def _told_apart(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two steps are known to have seen other images, though as many pixels were labelled."""
    return "images" in one and "images" in two and one["images"] != two["images"]


def _history_of(names: Sequence[str], history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The steps that learnt these classes, of which each names only those of them."""
    kept = [(record, [name for name in record["new_classes"] if name in names]) for record in history]
    return [{**record, "new_classes": new} for record, new in kept if new]
