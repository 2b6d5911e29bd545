"""Tables as data, drawn in a terminal or on a page."""

import html
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import rich.table

from incseg.metrics import nan_if_none
from incseg.report.runs import Run, names_beside_each_other


@dataclass(frozen=True)
class Table:
    """A title, headers and rows of text; the first column is a name, the others are numbers unless ``prose``."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    prose: bool = False

    def for_terminal(self) -> rich.table.Table:
        """A table for ``console.print``."""
        table = rich.table.Table(
            title=self.title, caption=self.note or None, title_justify="left", caption_justify="left"
        )
        for index, header in enumerate(self.headers):
            is_name = index == 0 and not self.prose  # a name cut in two is hard to find again
            justify: Literal["left", "right"] = "left" if index == 0 or self.prose else "right"
            table.add_column(header, justify=justify, overflow="fold", no_wrap=is_name)
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_html(self) -> str:
        """An HTML table; every cell is escaped."""
        head = "".join(f"<th>{html.escape(text)}</th>" for text in self.headers)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        note = f"<p class='note'>{html.escape(self.note)}</p>" if self.note else ""
        return (
            f"<h2>{html.escape(self.title)}</h2><div class='scroll'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>{note}"
        )


def percent(value: float) -> str:
    """As tables of the field print IoU: 71.5; a missing value is a dash."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


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


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean, and with several seeds the standard deviation beside it; a dash of nothing."""
    if not values:
        return "–"
    average = sum(values) / len(values)
    if len(values) == 1 or math.isnan(average):
        return percent(average)
    spread = math.sqrt(sum((value - average) ** 2 for value in values) / (len(values) - 1))
    return f"{percent(average)} ± {percent(spread)}"
