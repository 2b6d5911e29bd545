"""Plots of a reproduced table: mIoU over the steps, and for ablations mIoU over a parameter."""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from incseg.files import replacing
from incseg.paper.comparison import ComparedRow, ComparedScore, Outcome, heading
from incseg.paper.tables import Block, PaperTable

PAPER_MARKER: dict[str, Any] = {"linestyle": "none", "marker": "D", "markerfacecolor": "none", "markersize": 8}


def draw(table: PaperTable, outcome: Outcome, out: Path) -> list[Path]:
    """Plot the rows with finished runs, as PNG and SVG; returns the files."""
    written = []
    for block, rows in outcome:
        finished = [row for row in rows if row.runs]
        if any(not row.runs[0].is_offline for row in finished):
            name = f"{table.name}-{block.protocol.replace('/', '-')}-steps"
            title = None if finished[0].row.series else table.parameter
            written += _save(over_steps(block, finished, title), out, name)
    if table.parameter and any(row.runs for _, rows in outcome for row in rows):
        written += _save(over_parameter(table.parameter, outcome), out, table.name)
    return written


def over_steps(block: Block, rows: Sequence[ComparedRow], parameter: str | None = None) -> Figure:
    """mIoU of all foreground classes known so far after every step, and the paper's number after the last step.

    Every row has at least one run. Rows that count background in the paper have no marker for the paper's number.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    styles = itertools.cycle(["-", "--", "-.", ":"])  # lines that coincide stay visible
    palette = mpl.colormaps["tab10" if len(rows) <= 10 else "tab20"]
    last = max(len(run.steps) for row in rows for run in row.runs) - 1
    for index, row in enumerate(rows):
        colour, paper = palette(index), _score_of_all(row, block).paper
        if row.runs[0].is_offline:
            level = statistics.fmean(100 * run.miou(-1) for run in row.runs)
            axes.axhline(level, color=colour, linestyle=":", label=f"{row.row.label} (all classes at once)")
        else:
            values = [[100 * run.miou(step) for run in row.runs] for step in range(last + 1)]
            _draw_means(axes, range(last + 1), values, color=colour, label=row.row.label, linestyle=next(styles))
        axes.plot(last, paper, color=colour, **PAPER_MARKER)
    axes.plot([], [], color="grey", label="paper, after the last step", **PAPER_MARKER)
    axes.set(title=block.protocol, xlabel="step", ylabel="mIoU w/o bg (%)", ylim=(0, 100), xticks=range(last + 1))
    _add_grid(axes)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8, title=parameter)
    return figure


def over_parameter(parameter: str, outcome: Outcome) -> Figure:
    """mIoU of all foreground classes at every value of a parameter, ours and the paper's, one panel per protocol."""
    figure = Figure(figsize=(5.2 * len(outcome) + 1.5, 4), layout="constrained")
    panels = figure.subplots(1, len(outcome), squeeze=False)[0]
    for axes, (block, rows) in zip(panels, outcome, strict=True):
        values = sorted({row.row.at for row in rows if row.row.at is not None})
        for index, series in enumerate(dict.fromkeys(row.row.series for row in rows)):
            members = sorted((row for row in rows if row.row.series == series), key=lambda row: row.row.at or 0)
            places = [values.index(row.row.at) for row in members if row.row.at is not None]
            scores = [_score_of_all(row, block) for row in members]
            ours = [[100 * value for value in score.ours] for score in scores]
            _draw_means(axes, places, ours, color=f"C{index}", label=series or "ours")
            paper_label = f"{series}, paper" if series else "paper"
            axes.plot(places, [score.paper for score in scores], color=f"C{index}", label=paper_label, **PAPER_MARKER)
        axes.set(title=block.protocol, xlabel=parameter, ylabel="mIoU w/o bg (%)", xticks=range(len(values)))
        axes.set_xticklabels([f"{value:g}" for value in values])
        axes.legend(frameon=False, fontsize=8)
        _add_grid(axes)
    return figure


def _score_of_all(row: ComparedRow, block: Block) -> ComparedScore:
    """The score of all foreground classes."""
    return next(score for score in row.scores if score.heading == heading(block, block.scores[-1].label))


def _draw_means(axes: "mpl.axes.Axes", places: Sequence[int], values: Sequence[Sequence[float]], **style: Any) -> None:
    """A line through the means, with error bars of one standard deviation where there are several seeds."""
    means = [statistics.fmean(some) if some else math.nan for some in values]
    spreads = [statistics.stdev(some) if len(some) > 1 else 0.0 for some in values]
    error = spreads if any(spreads) else None
    axes.errorbar(list(places), means, yerr=error, marker="o", capsize=3, alpha=0.85, **style)


def _add_grid(axes: "mpl.axes.Axes") -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, out: Path, name: str) -> list[Path]:
    paths = [out / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        with replacing(path) as temporary, mpl.rc_context({"svg.fonttype": "none"}):
            figure.savefig(temporary, format=path.suffix[1:], dpi=120)
    return paths
