"""Tables of runs: the final scores in the paper's layout, and the scores over the steps."""

import itertools
from collections.abc import Sequence

from incseg.console import Table, mean_and_spread, percent
from incseg.metrics import nan_if_none
from incseg.report.runs import names_beside_each_other
from incseg.run_folder import Run


def summary(runs: Sequence[Run]) -> Table:
    """The paper's layout: final mIoU of the first classes, of those of every later step, and of all.

    Runs that differ in their seed alone are averaged. Without background, as the paper counts, and all with it beside.
    """
    groups = _groups(runs[0])
    headers = ["method", *(_range(a, b) for a, b in groups), "all", "all+bg", "harmonic", "forgetting", "avg. steps"]
    rows = []
    for name in dict.fromkeys(run.label for run in runs):
        seeds = [run for run in runs if run.label == name]
        columns = [[run.group(a, b) for run in seeds] for a, b in groups]
        columns += [[run.miou(-1, key) for run in seeds] for key in ("all", "all_with_background", "harmonic")]
        columns.append([nan_if_none(run.result["forgetting"]["mean"]) for run in seeds])
        columns.append([nan_if_none(run.result["average_miou"]) for run in seeds])
        rows.append([name, *(mean_and_spread(column) for column in columns)])
    apart = groups[:-1] if len(groups) > 2 else groups  # the last is then several of the others together
    names = "; ".join(f"{_range(a, b)}: {', '.join(runs[0].classes[a : b + 1])}" for a, b in apart)
    return Table(f"{runs[0].protocol}: mIoU after the last step (%)", headers, rows, names)


def _groups(run: Run) -> list[tuple[int, int]]:
    """Ranges of channels: the first step's classes, then each later step's, then all later ones together.

    As in the paper's tables, steps of a single class are not shown one by one.
    """
    ends = list(itertools.accumulate(len(step["new_classes"]) for step in run.steps))
    steps = [(a + 1, b) for a, b in itertools.pairwise([0, *ends])]
    if len(steps) == 1:
        return steps
    single = len(steps) == 2 or all(a == b for a, b in steps[1:])
    return [steps[0], *([] if single else steps[1:]), (ends[0] + 1, ends[-1])]


def per_step(runs: Sequence[Run]) -> Table:
    """mIoU of all foreground classes known so far, after every step."""
    learnt = [", ".join(step["new_classes"]) for step in runs[0].steps]
    rows = [
        [f"{index} (+ {names})" if index else f"0 ({names})", *(percent(run.miou(index)) for run in runs)]
        for index, names in enumerate(learnt)
    ]
    return Table("mIoU over the steps (%)", ["step", *names_beside_each_other(runs)], rows)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
