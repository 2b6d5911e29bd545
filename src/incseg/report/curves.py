"""The line charts of the page: mIoU over the steps, and every loss term over the training."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from incseg.report.charts import Curve, Panel, Point, rounded_range
from incseg.report.summary import run_names
from incseg.results import Run
from incseg.run_folder import RunFolder, read_metrics

NO_LOSSES = {"step", "iteration", "epoch", "learning_rate"}  # what a line of metrics.jsonl holds besides loss terms


def miou_over_steps(runs: Sequence[Run]) -> list[Panel]:
    """Two panels, each if anything was measured: mIoU of all foreground classes so far, and of those of step 0."""
    first = runs[0].steps[0]["new_classes"]
    steps = range(len(runs[0].steps))
    so_far = [[100 * run.miou(step) for step in steps] for run in runs]
    kept = [[100 * run.mean_iou(step, first) for step in steps] for run in runs]
    common_range = rounded_range([value for row in (*so_far, *kept) for value in row if math.isfinite(value)])
    return [
        Panel(
            title,
            [Curve(index, name, list(enumerate(values[index]))) for index, name in enumerate(run_names(runs))],
            x_range=(-0.1, steps[-1] + 0.1),
            x_ticks=[(step, str(step)) for step in _ticked(len(steps))],
            y_range=common_range,
            x_label="after step",
            marked=True,
        )
        for title, values in (
            ("mIoU of all classes so far, w/o bg (%)", so_far),
            ("mIoU of the classes of step 0 (%)", kept),
        )
        if any(math.isfinite(value) for row in values for value in row)
    ]


def loss_terms(runs: Sequence[Run]) -> list[Panel]:
    """One panel per loss term, from the first step to the last."""
    names, by_run = run_names(runs), [loss_curves(run) for run in runs]
    steps = len(runs[0].steps)
    panels = []
    for term in dict.fromkeys(term for terms in by_run for term in terms):
        curves = [Curve(index, names[index], terms[term]) for index, terms in enumerate(by_run) if term in terms]
        values = [y for curve in curves for _, y in curve.points if math.isfinite(y)]
        panels.append(
            Panel(
                term,
                curves,
                x_range=(0, steps),
                x_ticks=[(step + 0.5, str(step)) for step in _ticked(steps)],
                y_range=rounded_range(values),
                x_borders=range(1, steps),
            )
        )
    return panels


def _ticked(number: int, most: int = 12) -> range:
    """The steps that get a tick: all, or every n-th where there are too many."""
    return range(0, number, -(-number // most))


def loss_curves(run: Run, most: int = 240) -> dict[str, list[Point]]:
    """Points (time, loss) of every term.

    Time counts steps, so that runs of different lengths can be compared: 1.5 is the middle of step 1. An offline run is
    drawn where the others train their last step. A curve of more than ``most`` points is reduced to means of
    neighbouring points. A NaN separates the steps.
    """
    by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in _log_entries(run):
        by_step[int(entry["step"].removeprefix("step "))].append(entry)
    curves: dict[str, list[Point]] = defaultdict(list)
    for index in range(len(run.steps)):
        entries = by_step.get(index, [])
        for term in dict.fromkeys(name for entry in entries for name in entry if name not in NO_LOSSES):
            end = entries[-1]["iteration"]
            begin = run.begins_at + index
            points = [(begin + entry["iteration"] / end, entry[term]) for entry in entries if term in entry]
            curves[term] += [*_thinned(points, most // len(run.steps) or 1), (begin + 1, math.nan)]
    return dict(curves)


def _log_entries(run: Run) -> Iterator[dict[str, Any]]:
    """The lines of ``metrics.jsonl``; damaged ones are skipped."""
    yield from read_metrics(RunFolder(run.folder).metrics)[0]


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    size = -(-len(points) // most)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in chunk) / len(chunk), sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]
