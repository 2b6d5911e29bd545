"""Models as sums: statistics of several models add and subtract, each class under its name::

merge:   S = S_A + S_B − S_base
forget:  S = S − (S_after − S_before)        of the step that learnt the class
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from incseg.datasets.source import plain
from incseg.deploy.statistics import required_statistics
from incseg.errors import InputError
from incseg.models.closed_form import Statistics
from incseg.models.gather import Fit
from incseg.models.storage import TrainedModel

SomeModel = TypeVar("SomeModel", bound=TrainedModel)


def combined(classes: Sequence[str], terms: Sequence[tuple[int, TrainedModel]]) -> tuple[Statistics, Fit]:
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


def spelt_as(model: SomeModel, names: Sequence[str]) -> SomeModel:
    """The same model with its classes under these names where only case or spaces differ."""
    spelling = {plain(name): name for name in names}
    return replace(model, classes=tuple(spelling.get(plain(name), name) for name in model.classes))


def record_of(name: str, model: TrainedModel) -> Mapping[str, Any]:
    """What a model says of the step that learnt a class; nothing if it does not say."""
    found = (record for record in model.history if plain(name) in map(plain, record["new_classes"]))
    return next(found, {})


def require_same_network(model: TrainedModel, other: TrainedModel) -> None:
    """Refuse to add statistics of features that are not the same."""
    if not is_same_network(model, other):
        raise InputError(
            f"{model.path} and {other.path} are different networks: only statistics of the same network add up."
        )


def is_same_network(model: TrainedModel, other: TrainedModel) -> bool:
    """Whether all below the head is equal."""
    one, two = model.segmenter.below_the_head(), other.segmenter.below_the_head()
    return one.keys() == two.keys() and all(torch.equal(one[name].cpu(), two[name].cpu()) for name in one)
