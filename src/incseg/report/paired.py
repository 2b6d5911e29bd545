"""Methods against one of them, seed by seed: the mean difference, its spread, and whether it could be chance."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from incseg.console import Table, decimal
from incseg.errors import InputError
from incseg.results import Run

COMPARED: dict[str, Callable[[Run], float]] = {
    "base": lambda run: run.counted("ucd")["base"],
    "later": lambda run: run.counted("ucd")["later"],
    "all w/o bg": lambda run: run.miou(-1, "all"),
    "all+bg": lambda run: run.miou(-1, "all_with_background"),
}
NOTE = (
    "Methods are compared seed by seed: mean ± standard deviation of the differences, and p of a two-sided paired "
    "t-test over n seeds. Same step 0: how many of these pairs score the same on every class after step 0, and so "
    "differ only in what followed. In the other pairs step 0 was trained twice, by other losses, or has a solved "
    "head, and the difference contains what that changes. The test assumes normally distributed differences, and p is "
    "not corrected for the number of comparisons; with 2 or 3 seeds it is a rough guide, and a large p says little. "
    "base: classes of step 0; later: all others; neither counts background."
)


@dataclass(frozen=True)
class PairedDifference:
    """A score of one method minus that of another, in percentage points, one value per seed that both have."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        """NaN if there is none."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation; NaN for fewer than two."""
        finite = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if finite else math.nan

    @property
    def p(self) -> float:
        """Of a two-sided paired t-test: how often chance alone would give a difference as large; NaN if unknown."""
        if math.isnan(self.deviation) or not any(self.values):
            return math.nan
        if self.deviation == 0:
            return 0.0
        number = len(self.values)
        return two_sided_p(self.mean / (self.deviation / math.sqrt(number)), number - 1)

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        spread = "" if math.isnan(self.deviation) else f" ± {decimal(self.deviation, 1)}"
        chance = "" if math.isnan(self.p) else " (p < 0.001)" if self.p < 0.001 else f" (p {self.p:.3f})"
        return f"{round(self.mean, 1) + 0.0:+.1f}".replace("-", "−") + spread + chance


def two_sided_p(t: float, freedom: int) -> float:
    """P(|T| ≥ |t|) of Student's distribution with a whole number of degrees of freedom, exactly.

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4, with θ = arctan(t/√ν):
    odd ν: 1 − 2/π (θ + sin θ (cos θ + 2/3 cos³θ + …)); even ν: 1 − sin θ (1 + 1/2 cos²θ + 3/8 cos⁴θ + …).

    >>> round(two_sided_p(12.706, 1), 3), round(two_sided_p(4.303, 2), 3)
    (0.05, 0.05)
    """
    angle = math.atan2(abs(t), math.sqrt(freedom))
    odd, cosine = freedom % 2, math.cos(angle)
    total, term = 0.0, cosine if odd else 1.0
    for power in range(odd, freedom - 1, 2):  # of the cosine in this term
        total += term
        term *= (power + 1) / (power + 2) * cosine**2
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return max(0.0, 1.0 - inside)


def paired_differences(runs: Sequence[Run], against: str) -> dict[str, dict[str, PairedDifference]]:
    """Every other label minus the reference, by label and score."""
    return {
        label: {
            name: PairedDifference([100 * (score(own) - score(reference)) for own, reference in pairs])
            for name, score in COMPARED.items()
        }
        for label, pairs in _pairs(runs, against).items()
    }


def _pairs(runs: Sequence[Run], against: str) -> dict[str, list[tuple[Run, Run]]]:
    """By label, every run with the one of the reference that has the same seed."""
    by_label: dict[str, dict[int, Run]] = {}
    for run in runs:
        by_label.setdefault(run.label, {})[run.seed] = run
    if against not in by_label:
        raise InputError(f"--against {against} is none of the methods: choose from {', '.join(by_label)}.")
    reference = by_label.pop(against)
    return {
        label: [(run, reference[seed]) for seed, run in own.items() if seed in reference]
        for label, own in by_label.items()
    }


def _begin_alike(pair: tuple[Run, Run]) -> bool:
    first, second = (run.steps[0]["iou"] for run in pair)
    return bool(first == second)


def paired_table(runs: Sequence[Run], against: str | None = None) -> Table | None:
    """The differences from one method, the first unless another is named; None where there is nothing to compare.

    A method that shares no seed with the reference is left out. Unless a reference is named, at least one must share
    two seeds with it: from one seed, no test can say anything.
    """
    reference = against if against is not None else runs[0].label
    pairs = {label: found for label, found in _pairs(runs, reference).items() if found}
    if not pairs or (against is None and max(map(len, pairs.values())) < 2):
        return None
    differences = paired_differences(runs, reference)
    rows = [
        [label, str(len(found)), str(sum(map(_begin_alike, found))), *map(str, differences[label].values())]
        for label, found in pairs.items()
    ]
    title = f"difference from {reference}: mIoU after the last step (percentage points)"
    return Table(title, ["method", "n", "same step 0", *COMPARED], rows, NOTE)
