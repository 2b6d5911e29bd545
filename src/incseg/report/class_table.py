"""The table of all classes in the terminal, after a training or an evaluation: one line each, within 80 columns."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from rich.text import Text

from incseg.console import Table, percent
from incseg.metrics import nan_if_none, per_class_rates
from incseg.results import Run

LONGEST_NAME = 28  # columns; longer names are cut, so that the numbers fit beside them
MOST_ROWS = 40  # of more classes only the extremes are shown
EXTREMES = 10  # the worst, and as many of the best


class ClassScore(NamedTuple):
    """What is said of a class. A number that does not exist is NaN."""

    name: str
    iou: float
    share: float = math.nan
    """Of the labelled pixels."""
    recall: float = math.nan
    precision: float = math.nan
    learnt: str = ""
    """In which step, and whether it is new."""
    before: float = math.nan
    """IoU after the step in which it was learnt."""


def run_class_table(run: Run, elsewhere: str) -> Table:
    """IoU of every class after the last step of a run, beside what it was when the class was learnt.

    ``elsewhere`` says where all classes are shown, for a table that leaves some out.
    """
    last = len(run.steps) - 1
    learnt_in = {name: step["step"] for step in run.steps for name in step["new_classes"]}
    rates = _rates(run)
    scores = []
    for name in run.classes:
        step = learnt_in.get(name, 0)
        before = run.steps[step]["iou"].get(name) if step < last else None
        learnt = f"{step} new" if last and step == last else str(step)
        known = rates.get(name, (math.nan, math.nan, math.nan))
        scores.append(ClassScore(name, run.iou(-1, name), *known, learnt, nan_if_none(before)))
    note = "share: of the labelled pixels."
    if last:
        note = f"step: in which it was learnt; before: IoU (%) after that step; {note}"
    return class_table(f"{run.label}: IoU per class (%)", scores, note, elsewhere)


def class_table(title: str, scores: Sequence[ClassScore], note: str, elsewhere: str) -> Table:
    """One row per class in the given order, or of many classes the worst and the best; empty columns are left out."""
    if len(scores) > MOST_ROWS:
        ranked = sorted((score for score in scores if not math.isnan(score.iou)), key=lambda score: score.iou)
        worst, best = ranked[:EXTREMES], ranked[EXTREMES:][-EXTREMES:]
        title = f"{title}: the {len(worst)} worst and the {len(best)} best of {len(scores)} classes"
        rows = [*map(_row, worst), ["…"] * len(HEADERS), *map(_row, best)]
        note = f"{note} All classes: {elsewhere}."
    else:
        rows = [_row(score) for score in scores]
    kept = [
        index for index in range(len(HEADERS)) if index == 0 or any(row[index] not in ("", "–", "…") for row in rows)
    ]
    return Table(title, [HEADERS[index] for index in kept], [[row[index] for index in kept] for row in rows], note)


HEADERS = ("class", "step", "share", "recall", "precision", "before", "IoU")


def _row(score: ClassScore) -> list[str]:
    numbers = [percent(value) for value in (score.share, score.recall, score.precision, score.before, score.iou)]
    return [_cut(score.name), score.learnt, *numbers]


def _cut(name: str) -> str:
    text = Text(name)
    text.truncate(LONGEST_NAME, overflow="ellipsis")
    return text.plain


def _rates(run: Run) -> Mapping[str, tuple[float, float, float]]:
    """Share, recall and precision by name, of the classes that were scored."""
    entry = run.steps[-1]
    if not entry["confusion"]:
        return {}
    rates = per_class_rates(torch.tensor(entry["confusion"]))
    return {name: rate for name, rate in zip(run.classes, rates, strict=False) if entry["iou"].get(name) is not None}
