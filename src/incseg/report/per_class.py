"""What the page shows per class: IoU after every step, forgetting, and which classes are confused."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from incseg.console import percent
from incseg.metrics import nan_if_none
from incseg.results import Run


@dataclass(frozen=True)
class HeatCell:
    """A number and the strength of its colour: a level from 0 to 10, or None for no colour."""

    text: str
    level: int | None


@dataclass(frozen=True)
class ClassRow:
    """A class: per run, a cell for every step."""

    name: str
    cells: Sequence[Sequence[HeatCell]]


@dataclass(frozen=True)
class ClassRows:
    """Classes learnt in the same step."""

    title: str
    rows: Sequence[ClassRow]


EMPTY = HeatCell("", None)


def iou_over_steps(runs: Sequence[Run]) -> list[ClassRows]:
    """IoU of every class after every step, classes in the order they were learnt, and their mean."""
    steps = runs[0].steps
    groups = []
    for index, step in enumerate(steps):
        names = [*([runs[0].classes[0]] if index == 0 else []), *step["new_classes"]]
        if names:
            groups.append(ClassRows(f"learnt in step {index}", [_class_row(runs, name) for name in names]))
    means = [[_heat_cell(run.miou(k)) if run.entry(k) else EMPTY for k in range(len(steps))] for run in runs]
    return [*groups, ClassRows("mean", [ClassRow("without background", means)])]


def _class_row(runs: Sequence[Run], name: str) -> ClassRow:
    return ClassRow(name, [[_iou_cell(run, name, step) for step in range(len(runs[0].steps))] for run in runs])


def _iou_cell(run: Run, name: str, step: int) -> HeatCell:
    entry = run.entry(step)
    return _heat_cell(run.iou(step, name)) if entry and name in entry["iou"] else EMPTY


def _heat_cell(value: float) -> HeatCell:
    return HeatCell(percent(value), None if math.isnan(value) else round(10 * min(max(value, 0), 1)))


@dataclass(frozen=True)
class Bar:
    """Percentage points of IoU lost since the best earlier step; negative where the class has improved."""

    text: str
    length: float
    improved: bool


def forgetting(runs: Sequence[Run]) -> list[tuple[str, list[Bar]]]:
    """Per class, or per step where steps bring domains, then on average: one bar per run; without the last step's.

    Empty where nothing learnt earlier was measured.
    """
    earlier = [name for step in runs[0].steps[:-1] for name in step["new_classes"]]
    rows = [(name, [_bar(run.result["forgetting"]["classes"].get(name)) for run in runs]) for name in earlier]
    if runs[0].domains:
        lost = [run.result["forgetting"]["domains"] for run in runs]
        rows = [(f"domains of step {k}", [_bar(each[k]) for each in lost]) for k in range(len(runs[0].steps) - 1)]
    means = [run.result["forgetting"]["mean"] for run in runs]
    return [*rows, ("mean", [_bar(lost) for lost in means])] if rows and any(lost is not None for lost in means) else []


def _bar(value: float | None) -> Bar:
    lost = nan_if_none(value)
    points = 0.0 if math.isnan(lost) else round(100 * lost, 1)
    return Bar(percent(lost), abs(points), points < 0)


ConfusionMatrix = Sequence[Sequence[int]]
"""Counts of pixels by (true channel, predicted channel)."""


@dataclass(frozen=True)
class Mistake:
    """Pixels of one class that were predicted as another."""

    truth: str
    prediction: str
    share: float
    """Of the true class's pixels."""


def sparse_shares(matrix: ConfusionMatrix) -> list[list[int]]:
    """Per true class the shares of its pixels in thousandths, as ``[channel, share, channel, share, …]`` without zeros.

    A matrix of 150 classes is nearly empty; without zeros it takes a tenth of the space.
    """
    shares = []
    for row in matrix:
        total = sum(row) or 1
        found = [(channel, round(1000 * count / total)) for channel, count in enumerate(row)]
        shares.append([number for pair in found if pair[1] for number in pair])
    return shares


def most_confused(matrix: ConfusionMatrix, classes: Sequence[str], most: int = 10) -> list[Mistake]:
    """The largest shares off the diagonal, largest first."""
    mistakes = [
        Mistake(classes[truth], classes[prediction], count / sum(row))
        for truth, row in enumerate(matrix)
        for prediction, count in enumerate(row)
        if count and truth != prediction
    ]
    return sorted(mistakes, key=lambda mistake: -mistake.share)[:most]
