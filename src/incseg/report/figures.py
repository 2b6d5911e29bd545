"""Figures: mIoU over the steps, and what the runs saw in the same images."""

import itertools
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from incseg.data.palette import palette
from incseg.metrics import mean
from incseg.report.runs import Run

LEGEND_WIDTH, LEGEND_HEIGHT = 1.4, 0.18  # inches of a name and its colour

mpl.rcParams["svg.fonttype"] = "none"  # text stays text: small, searchable, in the reader's font


def miou_over_steps(runs: Sequence[Run]) -> Figure:
    """One line per run: mIoU of all foreground classes known so far, and beside it that of the first step's classes."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    first_classes = runs[0].steps[0]["new_classes"]
    styles = itertools.cycle(["-", "--", "-.", ":"])  # methods that agree stay visible beneath each other
    for run in runs:
        steps = range(len(runs[0].steps))
        kept = [mean(run.iou(k, name) for name in first_classes) for k in steps]
        style = {"marker": "o", "label": run.label, "linestyle": next(styles), "alpha": 0.85}
        panels[0].plot(steps, [100 * run.miou(k) for k in steps], **style)
        panels[1].plot(steps, [100 * value for value in kept], **style)
    for panel, title in zip(panels, ("all classes so far", "the classes of step 0"), strict=True):
        panel.set(title=title, xlabel="step", ylim=(0, 100), xticks=list(range(len(runs[0].steps))))
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mIoU (%)")
    panels[1].legend(frameon=False)
    return figure


def predictions(runs: Sequence[Run], step: int, most: int = 6) -> Figure | None:
    """A grid: image, ground truth as of that step, each run's prediction. None if no run kept pictures."""
    folders = [run.pictures(step) for run in runs]
    names = sorted(path.name.removesuffix(".image.jpg") for path in folders[0].glob("*.image.jpg"))[:most]
    if not names:
        return None
    titles = ["image", "ground truth", *(textwrap.fill(run.label, 18) for run in runs)]
    figure = Figure(figsize=(1.9 * len(titles), 1.9 * len(names) + 0.7), layout="constrained")
    cells = figure.subplots(len(names), len(titles), squeeze=False)
    shown: set[int] = set()
    for row, name in zip(cells, names, strict=True):
        files = [folders[0] / f"{name}.image.jpg", folders[0] / f"{name}.truth.png"]
        files += [folder / f"{name}.prediction.png" for folder in folders]
        for cell, file in zip(row, files, strict=True):
            shown |= _show(cell, file)
    for cell, title in zip(cells[0], titles, strict=True):
        cell.set_title(title, fontsize=10)
    known = list(runs[0].steps[step]["iou"])
    colours = palette() / 255
    handles = [Patch(color=colours[c], label=name) for c, name in enumerate(known) if c in shown]
    columns = max(1, min(len(handles), int(figure.get_figwidth() / LEGEND_WIDTH)))
    figure.set_figheight(figure.get_figheight() + LEGEND_HEIGHT * math.ceil(len(handles) / columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure


def _show(cell: "mpl.axes.Axes", file: Path) -> set[int]:
    """Draw a picture, if it is there; returns the channels it shows, if it is one of labels."""
    cell.axis("off")
    if not file.is_file():
        return set()
    with Image.open(file) as picture:
        cell.imshow(picture.convert("RGB"), interpolation="nearest")
        return set(np.unique(np.array(picture)).tolist()) if picture.mode == "P" else set()
