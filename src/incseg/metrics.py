"""Metrics: one confusion matrix of counts; everything else is derived from it, and divided once.

A class that appears neither in the ground truth nor in the prediction has no IoU: NaN, left out of every mean.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from incseg.protocol import BACKGROUND, IGNORE, Step

if TYPE_CHECKING:  # reports need the means alone, and PyTorch takes seconds
    from torch import Tensor


def none_if_nan(value: float) -> float | None:
    """JSON has no NaN; None stands for a value that does not exist."""
    return None if math.isnan(value) else value


def nan_if_none(value: float | None) -> float:
    """The way back from JSON."""
    return math.nan if value is None else float(value)


def confusion_matrix(labels: "Tensor", predictions: "Tensor", num_classes: int) -> "Tensor":
    """Count pixels by (true channel, predicted channel).

    Args:
        labels: integer channels of any shape; 255 is left out.
        predictions: integer channels of the same shape.
        num_classes: C.

    Returns:
        (C, C) int64, rows are ground truth. Matrices of parts of the data add up to the matrix of the whole.
    """
    kept = labels != IGNORE
    pairs = labels[kept].long() * num_classes + predictions[kept].long()
    return pairs.bincount(minlength=num_classes**2).reshape(num_classes, num_classes)


def intersection_over_union(confusion: "Tensor") -> list[float]:
    """IoU = TP / (TP + FP + FN) per channel, NaN for a class that is nowhere.

    Background that the ground truth never shows was left out of the score, and has none either.
    """
    counts = confusion.double()
    union = counts.sum(0) + counts.sum(1) - counts.diagonal()
    iou = [float(x) for x in counts.diagonal() / union]
    return iou if counts[BACKGROUND].sum() > 0 else [math.nan, *iou[1:]]


def mean(values: Iterable[float]) -> float:
    """The mean of what is there: NaN entries are left out; NaN when nothing is left."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def complete_mean(values: Iterable[float]) -> float:
    """The mean of values of which none may be missing: NaN if one is."""
    values = list(values)
    return math.nan if any(map(math.isnan, values)) else mean(values)


def harmonic_mean(first: float, second: float) -> float:
    """2ab/(a+b): high only when both are; NaN if either is missing."""
    return 0.0 if first + second == 0 else 2 * first * second / (first + second)


def step_scores(iou: Sequence[float], step: Step, unlabelled: Collection[int] = ()) -> dict[str, float]:
    """Mean IoU over the groups of a step.

    A class that is labelled and shown nowhere is left out of a mean. A group with a class that no mask labels, as in
    many an extension, has no mean.

    ``old``, ``new`` and ``all`` count foreground classes only (the convention of the paper's tables); the names ending
    in ``_with_background`` also count channel 0, which belongs to ``old`` as it does in tables that count it.
    ``harmonic`` is the harmonic mean of the classes of step 0 and of all later ones, not of ``old`` and ``new``.
    """
    groups: dict[str, tuple[int, ...]] = {
        "old": step.old,
        "new": step.new,
        "all": step.seen,
        "old_with_background": (BACKGROUND, *step.old),
        "all_with_background": (BACKGROUND, *step.seen),
    }
    scores = {name: mean([iou[c] for c in group]) for name, group in groups.items()}
    scores["harmonic"] = CONVENTIONS["ucd"].scores(iou, len(step.base))["harmonic"]
    missing = [
        name for name, group in {**groups, "harmonic": step.seen}.items() if not set(unlabelled).isdisjoint(group)
    ]
    return scores | dict.fromkeys(missing, math.nan)


def foreground_miou(confusion: "Tensor") -> float:
    """Mean IoU without background."""
    return mean(intersection_over_union(confusion)[1:])


def domain_scores(groups: "Tensor") -> dict[str, float]:
    """Mean IoU without background where steps bring domains: of all classes, on the images of some domains.

    ``new`` is on those of this step and ``old`` on those of all before it, ``first`` on those of step 0 and ``later``
    on all others; ``harmonic`` is the harmonic mean of the last two.

    Args:
        groups: (N, C, C) confusion counts on the domains of each step so far.
    """
    chosen = {"old": groups[:-1], "new": groups[-1:], "first": groups[:1], "later": groups[1:]}
    scores = {name: foreground_miou(counts.sum(dim=0)) for name, counts in chosen.items()}
    return scores | {"harmonic": harmonic_mean(scores["first"], scores["later"])}


@dataclass(frozen=True)
class Convention:
    """How a group of papers averages IoU over the classes of step 0 (base) and those of all later steps (later)."""

    papers: str
    counts_background: bool
    """Among the base classes, and in the mean of all."""
    absent_is_zero: bool = False
    """A class that appears nowhere counts as 0, instead of being left out; background that was not scored does not."""

    def scores(self, iou: Sequence[float], base: int) -> dict[str, float]:
        """``base``, ``later``, ``all``, and the harmonic mean of the first two.

        Args:
            iou: per channel, background first.
            base: number of foreground classes learnt in step 0.
        """
        counted = [iou[0], *(0.0 if self.absent_is_zero and math.isnan(value) else value for value in iou[1:])]
        start = 0 if self.counts_background else 1
        first, later = mean(counted[start : base + 1]), mean(counted[base + 1 :])
        return {"base": first, "later": later, "all": mean(counted[start:]), "harmonic": harmonic_mean(first, later)}


CONVENTIONS = {
    "ucd": Convention("UCD, MiB", counts_background=False),
    "plop": Convention("PLOP, SDR and most since 2021", counts_background=True),
    "dkd": Convention("DKD, STAR", counts_background=True, absent_is_zero=True),
}


def forgetting(history: Sequence[Sequence[float]]) -> list[float]:
    """Per channel: its best IoU at any earlier step minus its IoU now; NaN for a channel not known before.

    Args:
        history: IoU per channel after each step, in order; later steps have more channels.
    """
    now = history[-1]
    return [
        max(
            (earlier[c] for earlier in history[:-1] if c < len(earlier) and not math.isnan(earlier[c])),
            default=math.nan,
        )
        - now[c]
        for c in range(len(now))
    ]


def per_class_rates(confusion: "Tensor") -> list[tuple[float, float, float]]:
    """Per channel: its share of the labelled pixels, its recall TP / (TP + FN), and its precision TP / (TP + FP).

    NaN where there is nothing to divide by: no labelled pixel, none of the class, none predicted as it.
    """
    counts = confusion.double()
    hits, truth, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    rates = zip(truth / truth.sum(), hits / truth, hits / predicted, strict=True)
    return [(float(share), float(recall), float(precision)) for share, recall, precision in rates]
