"""One figure for a paper: images, their ground truth, and what each method sees in them after the last step."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from incseg.datasets.check import varied_images
from incseg.errors import InputError
from incseg.fonts import write_in
from incseg.protocol import BACKGROUND, IGNORE
from incseg.report.album import open_picture
from incseg.report.figures import by_label
from incseg.report.overlays import add_legend, painted
from incseg.results import Run

IMAGES = 6  # on the figure, unless it takes more to show every class that the kept pictures show
WIDTH = 1.7  # inches of a column
KINDS = (".png", ".pdf", ".svg", ".jpg")


def drawn_as(path: Path, runs: Sequence[Run]) -> bytes:
    """The content of a file with :func:`side_by_side`; its name says how it is to be written."""
    if path.suffix.lower() not in KINDS:
        raise InputError(f"--pictures {path}: a figure is written as {', '.join(KINDS)}; choose another name.")
    content = io.BytesIO()
    side_by_side(runs).savefig(content, format=path.suffix[1:].lower())
    return content.getvalue()


def side_by_side(runs: Sequence[Run], usual: int = IMAGES) -> Figure:
    """A row per validation image that all runs kept a picture of, a column per method; of several seeds, the first.

    The images together show every class that those pictures show, and are ``usual`` many if that is enough.
    """
    shown = {label: some[0] for label, some in by_label(runs).items()}
    folders = {label: run.files.predictions(len(run.steps) - 1) for label, run in shown.items()}
    classes = _classes_by_image(folders)
    if not classes:
        raise InputError(
            "--pictures: these runs have no picture in common; a run keeps --engine.pictures of them, 0 is none."
        )
    example, first = next(iter(shown.values())), next(iter(folders.values()))
    rows = varied_images(classes, usual)
    figure, cells = _grid(len(rows), ["image", "ground truth", *shown])
    for row, name in enumerate(rows):
        image = np.asarray(open_picture(first / f"{name}.image.jpg").convert("RGB"))
        maps = [first / f"{name}.truth.png", *(folder / f"{name}.prediction.png" for folder in folders.values())]
        pictures = [image / 255, *(painted(image, np.asarray(open_picture(path)), example.colours) for path in maps)]
        for column, picture in enumerate(pictures):
            cells[row][column].imshow(picture, interpolation="nearest")
    present = sorted(frozenset[int]().union(*(classes[name] for name in rows)))
    add_legend(figure, {channel: example.classes[channel] for channel in present}, example.colours)
    return figure


def _classes_by_image(folders: Mapping[str, Path]) -> dict[str, frozenset[int]]:
    """The classes in the ground truth of every image that all runs kept."""
    ending, first = ".prediction.png", next(iter(folders.values()))
    kept = [{path.name.removesuffix(ending) for path in folder.glob(f"*{ending}")} for folder in folders.values()]
    found = {}
    for name in sorted(set.intersection(*kept)):
        ids = np.unique(np.asarray(open_picture(first / f"{name}.truth.png")))
        found[name] = frozenset(ids.tolist()) - {BACKGROUND, IGNORE}
    return found


def _grid(rows: int, titles: Sequence[str]) -> tuple[Figure, Any]:
    """A figure of so many rows below these titles, and its axes by row and column."""
    figure = Figure(figsize=(WIDTH * len(titles), WIDTH * rows + 0.7), layout="constrained", dpi=150)
    axes = figure.subplots(rows, len(titles), squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for ax, title in zip(axes[0], titles, strict=True):
        write_in(ax.set_title("", fontsize=8), title, "a name that no font here can draw")
    return figure, axes
