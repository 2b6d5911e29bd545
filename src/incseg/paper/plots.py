"""The plots of the paper's ablations with our runs: mIoU over the steps, and mIoU over a parameter."""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from incseg.files import replacing
from incseg.paper import Block, Table
from incseg.paper.comparison import Cell, Line, Outcome

PAPER: dict[str, Any] = {"linestyle": "none", "marker": "D", "markerfacecolor": "none", "markersize": 8}


def draw(table: Table, outcome: Outcome, out: Path) -> list[Path]:
    """Plot what is finished, as PNG and SVG; returns the files."""
    written = []
    for block, lines in outcome:
        finished = [line for line in lines if line.runs]
        if any(not line.runs[0].is_offline for line in finished):
            name = f"{table.name}-{block.protocol.replace('/', '-')}-steps"
            title = None if finished[0].row.series else table.parameter
            written += _save(over_steps(block, finished, title), out, name)
    if table.parameter and any(line.runs for _, lines in outcome for line in lines):
        written += _save(over_parameter(table.parameter, outcome), out, table.name)
    return written


def over_steps(block: Block, lines: Sequence[Line], parameter: str | None = None) -> Figure:
    """mIoU of all foreground classes known so far after every step, and what the paper has after the last.

    Every line has at least one run. Rows that count background in the paper have no point beside them.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    styles = itertools.cycle(["-", "--", "-.", ":"])  # rows that agree stay visible beneath each other
    palette = mpl.colormaps["tab10" if len(lines) <= 10 else "tab20"]
    last = max(len(run.steps) for line in lines for run in line.runs) - 1
    for index, line in enumerate(lines):
        colour, paper = palette(index), _everything(line, block).paper
        if line.runs[0].is_offline:
            level = statistics.fmean(100 * run.miou(-1) for run in line.runs)
            axes.axhline(level, color=colour, linestyle=":", label=f"{line.row.label} (all classes at once)")
        else:
            values = [[100 * run.miou(step) for run in line.runs] for step in range(last + 1)]
            _line(axes, range(last + 1), values, color=colour, label=line.row.label, linestyle=next(styles))
        axes.plot(last, paper, color=colour, **PAPER)
    axes.plot([], [], color="grey", label="paper, after the last step", **PAPER)
    axes.set(title=block.protocol, xlabel="step", ylabel="mIoU (%)", ylim=(0, 100), xticks=range(last + 1))
    _finish(axes)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8, title=parameter)
    return figure


def over_parameter(parameter: str, outcome: Outcome) -> Figure:
    """mIoU of all foreground classes at every value of a parameter, one panel per protocol; the paper's beside ours."""
    figure = Figure(figsize=(5.2 * len(outcome) + 1.5, 4), layout="constrained")
    panels = figure.subplots(1, len(outcome), squeeze=False)[0]
    for axes, (block, lines) in zip(panels, outcome, strict=True):
        values = sorted({line.row.at for line in lines if line.row.at is not None})
        for index, series in enumerate(dict.fromkeys(line.row.series for line in lines)):
            mine = sorted((line for line in lines if line.row.series == series), key=lambda line: line.row.at or 0)
            places = [values.index(line.row.at) for line in mine if line.row.at is not None]
            cells = [_everything(line, block) for line in mine]
            label, colour = series or "ours", f"C{index}"
            _line(axes, places, [[100 * v for v in cell.ours] for cell in cells], color=colour, label=label)
            theirs = f"{series}, paper" if series else "paper"
            axes.plot(places, [cell.paper for cell in cells], color=colour, label=theirs, **PAPER)
        axes.set(title=block.protocol, xlabel=parameter, ylabel="mIoU (%)", xticks=range(len(values)))
        axes.set_xticklabels([f"{value:g}" for value in values])
        axes.legend(frameon=False, fontsize=8)
        _finish(axes)
    return figure


def _everything(line: Line, block: Block) -> Cell:
    """The number of all foreground classes."""
    return next(cell for cell in line.cells if cell.heading == block.scores[-1].label)


def _line(axes: "mpl.axes.Axes", places: Sequence[int], values: Sequence[Sequence[float]], **style: Any) -> None:
    """Means, with a bar of one standard deviation up and down where there are several seeds."""
    means = [statistics.fmean(some) if some else math.nan for some in values]
    spreads = [statistics.stdev(some) if len(some) > 1 else 0.0 for some in values]
    axes.errorbar(
        list(places), means, yerr=spreads if any(spreads) else None, marker="o", capsize=3, alpha=0.85, **style
    )


def _finish(axes: "mpl.axes.Axes") -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, out: Path, name: str) -> list[Path]:
    paths = [out / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        with replacing(path) as temporary, mpl.rc_context({"svg.fonttype": "none"}):
            figure.savefig(temporary, format=path.suffix[1:], dpi=120)
    return paths
