"""``incseg data check``: the findings as tables, and a contact sheet of labelled images."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from incseg.colours import Colours, palette
from incseg.console import Table
from incseg.datasets import Source
from incseg.datasets.check import KINDS, Findings, varied_images
from incseg.fonts import write_in
from incseg.protocol import IGNORE

IMAGES, COLUMNS = 12, 4
LONGEST_SIDE = 480  # pixels of an image on the sheet
OPACITY = 0.6  # of the classes over the image


def overview(name: str, found: Mapping[str, Findings], published: tuple[int, int] | None) -> Table:
    """The number of images, here and in the published dataset, and of problems of each kind."""
    images = [findings.images for findings in found.values()]
    rows = [["images", *map(str, images)], ["images as published", *map(str, published or ["–"] * len(found))]]
    rows += [[kind, *(str(len(findings.problems[kind])) for findings in found.values())] for kind in KINDS]
    note = "Not the complete dataset: the lists of images differ from the published ones." if published else ""
    return Table(name, ["", *found], rows, note if published != tuple(images) else "")


def frequencies(classes: Sequence[str], found: Mapping[str, Findings]) -> Table:
    """Per class and split: the number of images that show it, and its share of all pixels."""
    names = {**dict(enumerate(classes)), IGNORE: "(void, 255)"}
    rows = []
    for dataset_id, name in names.items():
        row = [name]
        for findings in found.values():
            share = 100 * findings.pixels[dataset_id] / max(1, findings.pixels.sum())
            row += [str(findings.shown_by[dataset_id]), f"{share:.2f}"]
        rows.append(row)
    headers = [f"{split}: {what}" for split in found for what in ("images", "% of pixels")]
    return Table("classes", ["class", *headers], rows)


def picture_sheet(source: Source, findings: Findings, colours: Colours) -> Figure:
    """Training images that together show as many classes as possible, overlaid with their masks, and a legend."""
    chosen = varied_images(findings, IMAGES)
    rows = max(1, math.ceil(len(chosen) / COLUMNS))
    shapes = [source.train.mask(index).shape for index in chosen]
    height = min(
        1.0, max((tall / wide for tall, wide in shapes), default=1.0)
    )  # of a row, relative to the width of a column
    figure = Figure(figsize=(3.2 * COLUMNS, (3.2 * height + 0.4) * rows + 1), layout="constrained", dpi=110)
    cells = figure.subplots(rows, COLUMNS, squeeze=False)
    shown: set[int] = set()
    for cell in cells.flat:
        cell.axis("off")
    for cell, index in zip(cells.flat, chosen, strict=False):
        mask = _reduced(source.train.mask(index)[None])[0].numpy()
        image = _reduced(source.train.image(index)).permute(1, 2, 0).numpy() / 255
        labelled = ((mask != 0) & (mask != IGNORE))[..., None]
        painted = (1 - OPACITY) * image + OPACITY * palette(colours)[mask] / 255
        cell.imshow(np.where(labelled, painted, image), interpolation="nearest")
        write_in(cell.set_title("", fontsize=8), source.train.ids[index], f"image {index}")
        shown |= set(np.unique(mask).tolist()) - {0, IGNORE}
    if shown:
        _add_legend(figure, {index: source.classes[index] for index in sorted(shown)}, colours)
    return figure


def _add_legend(figure: Figure, names: Mapping[int, str], colours: Colours) -> None:
    """Colours and names by id; a name that no installed font can draw is replaced by its id."""
    patches = [Patch(color=palette(colours)[index] / 255, label=str(index)) for index in names]
    legend = figure.legend(handles=patches, loc="outside lower center", ncols=8, frameon=False, fontsize=7)
    for text, (index, name) in zip(legend.get_texts(), names.items(), strict=True):
        write_in(text, name, f"class {index}")


def _reduced(pixels: Tensor) -> Tensor:
    """Every n-th pixel of (C, H, W), so that the longer side is at most ``LONGEST_SIDE``."""
    every = max(1, math.ceil(max(pixels.shape[1:]) / LONGEST_SIDE))
    return torch.as_tensor(pixels)[:, ::every, ::every]
