"""Loss curves: what ``metrics.jsonl`` says of every term, short enough to draw."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from incseg.report.runs import Run

Point = tuple[float, float]
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
    path = run.folder / "metrics.jsonl"
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.endswith("}"):
                yield json.loads(line)


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    size = -(-len(points) // most)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in chunk) / len(chunk), sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]
