"""What the charts and the coloured tables of the page show."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from incseg.console import percent
from incseg.metrics import mean, nan_if_none
from incseg.report.charts import Line, Panel, Point, rounded_range
from incseg.report.runs import names_beside_each_other
from incseg.run_folder import Run


def miou_over_steps(runs: Sequence[Run]) -> list[Panel]:
    """mIoU of all foreground classes known so far, and beside it that of the first step's classes."""
    first = runs[0].steps[0]["new_classes"]
    last = len(runs[0].steps) - 1
    so_far = [[100 * run.miou(step) for step in range(last + 1)] for run in runs]
    kept = [[100 * mean(run.iou(step, name) for name in first) for step in range(last + 1)] for run in runs]
    names = names_beside_each_other(runs)
    both = rounded_range([value for row in (*so_far, *kept) for value in row if math.isfinite(value)])
    return [
        Panel(
            title,
            [Line(i, name, list(enumerate(values[i]))) for i, name in enumerate(names)],
            x_range=(-0.1, last + 0.1),
            x_ticks=[(step, str(step)) for step in _some(last + 1)],
            y_range=both,
            x_label="after step",
            marked=True,
        )
        for title, values in (("mIoU of all classes so far (%)", so_far), ("mIoU of the classes of step 0 (%)", kept))
    ]


def loss_terms(runs: Sequence[Run]) -> list[Panel]:
    """One panel per loss term; time runs through the steps."""
    names, curves = names_beside_each_other(runs), [loss_curves(run) for run in runs]
    steps = len(runs[0].steps)
    panels = []
    for term in dict.fromkeys(term for curve in curves for term in curve):
        lines = [Line(i, names[i], curve[term]) for i, curve in enumerate(curves) if term in curve]
        values = [y for line in lines for _, y in line.points if math.isfinite(y)]
        panels.append(
            Panel(
                term,
                lines,
                x_range=(0, steps),
                x_ticks=[(step + 0.5, str(step)) for step in _some(steps)],
                y_range=rounded_range(values),
                x_borders=range(1, steps),
            )
        )
    return panels


def _some(number: int, most: int = 12) -> range:
    """0, 1, 2, … or as many of them as there is room for."""
    return range(0, number, -(-number // most))


@dataclass(frozen=True)
class Cell:
    """A number and how strongly it is coloured: a level from 0 to 10, or None for a blank."""

    text: str
    level: int | None


@dataclass(frozen=True)
class Row:
    """A class: per run, a cell for every step."""

    name: str
    cells: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class RowGroup:
    """Classes learnt together."""

    title: str
    rows: Sequence[Row]


def iou_over_steps(runs: Sequence[Run]) -> list[RowGroup]:
    """IoU of every class after every step, classes in the order they were learnt, and their mean."""
    steps = runs[0].steps
    groups = []
    for index, step in enumerate(steps):
        names = [*([runs[0].classes[0]] if index == 0 else []), *step["new_classes"]]
        groups.append(RowGroup(f"learnt in step {index}", [_class_row(runs, name) for name in names]))
    means = [[_cell(run.miou(k)) if run.entry(k) else Cell("", None) for k in range(len(steps))] for run in runs]
    return [*groups, RowGroup("mean", [Row("without background", means)])]


def _class_row(runs: Sequence[Run], name: str) -> Row:
    return Row(name, [[_iou_cell(run, name, step) for step in range(len(runs[0].steps))] for run in runs])


def _iou_cell(run: Run, name: str, step: int) -> Cell:
    entry = run.entry(step)
    return _cell(run.iou(step, name)) if entry and name in entry["iou"] else Cell("", None)


def _cell(value: float) -> Cell:
    return Cell(percent(value), None if math.isnan(value) else round(10 * min(max(value, 0), 1)))


@dataclass(frozen=True)
class Bar:
    """Percentage points lost since the best earlier step; negative where the class has gained."""

    text: str
    length: float
    gained: bool


def forgetting(runs: Sequence[Run]) -> list[tuple[str, list[Bar]]]:
    """Per class, then on average: one bar per run. Classes of the last step cannot have been forgotten yet."""
    earlier = [name for step in runs[0].steps[:-1] for name in step["new_classes"]]
    rows = [(name, [_bar(run.result["forgetting"]["classes"].get(name)) for run in runs]) for name in earlier]
    return [*rows, ("mean", [_bar(run.result["forgetting"]["mean"]) for run in runs])] if rows else []


def _bar(value: float | None) -> Bar:
    lost = nan_if_none(value)
    return Bar(percent(lost), 0.0 if math.isnan(lost) else round(100 * abs(lost), 1), lost < 0)


BESIDE = {"step", "iteration", "epoch", "learning_rate"}  # what a line holds besides loss terms


def loss_curves(run: Run, most: int = 240) -> dict[str, list[Point]]:
    """Points (time, loss) of every term.

    Time counts steps, so that runs of different length lie above each other: 1.5 is the middle of step 1; a run of all
    classes at once lies where the others learn their last. A curve of more than ``most`` points is thinned to the means
    of neighbours. Steps are parted by a NaN.
    """
    steps: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in _entries(run):
        steps[int(entry["step"].removeprefix("step "))].append(entry)
    curves: dict[str, list[Point]] = defaultdict(list)
    for index in range(len(run.steps)):
        entries = steps.get(index, [])
        for term in dict.fromkeys(name for entry in entries for name in entry if name not in BESIDE):
            end = entries[-1]["iteration"]
            begin = run.begins_at + index
            points = [(begin + entry["iteration"] / end, entry[term]) for entry in entries if term in entry]
            curves[term] += [*_thinned(points, most // len(run.steps) or 1), (begin + 1, math.nan)]
    return dict(curves)


def _entries(run: Run) -> Iterator[dict[str, Any]]:
    """The lines of the log; one that a crash cut short is left out."""
    path = run.files.metrics
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.endswith("}"):
                yield json.loads(line)


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    size = -(-len(points) // most)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in chunk) / len(chunk), sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Mistake:
    """Pixels of one class that were taken for another."""

    truth: str
    prediction: str
    share: float
    """Of the true class's pixels."""


def sparse_shares(matrix: Matrix) -> list[list[int]]:
    """Per true class the shares of its pixels in thousandths, as ``[channel, share, channel, share, …]`` without zeros.

    A matrix of 150 classes is nearly empty; so it takes a tenth of the room.
    """
    shares = []
    for row in matrix:
        total = sum(row) or 1
        found = [(channel, round(1000 * count / total)) for channel, count in enumerate(row)]
        shares.append([number for pair in found if pair[1] for number in pair])
    return shares


def most_confused(matrix: Matrix, classes: Sequence[str], most: int = 10) -> list[Mistake]:
    """The largest shares off the diagonal, largest first."""
    mistakes = [
        Mistake(classes[truth], classes[prediction], count / sum(row))
        for truth, row in enumerate(matrix)
        for prediction, count in enumerate(row)
        if count and truth != prediction
    ]
    return sorted(mistakes, key=lambda mistake: -mistake.share)[:most]
