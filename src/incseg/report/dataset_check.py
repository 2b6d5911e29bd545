"""``incseg data check``: the findings as tables, and a contact sheet of labelled images."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from incseg.colours import Colours
from incseg.console import Table
from incseg.datasets import Source, Split
from incseg.datasets.check import KINDS, Findings, varied_images
from incseg.errors import InputError
from incseg.fonts import write_in
from incseg.images import read_image
from incseg.protocol import IGNORE
from incseg.report.overlays import add_legend, painted
from incseg.sizes import resize_nearest

IMAGES, COLUMNS = 12, 4  # on the sheet: so many, unless it takes more to show every class
REFUSED = 4  # images with problems on a sheet that shows others
LONGEST_SIDE = 480  # pixels of an image on the sheet
VOID = f"(void, {IGNORE})"
RED = "firebrick"


def overview(name: str, found: Mapping[str, Findings], published: tuple[int, int] | None) -> Table:
    """The number of images, here and in the published dataset, and of problems of each kind."""
    images = [findings.images for findings in found.values()]
    rows = [["images", *map(str, images)], ["images as published", *map(str, published or ["–"] * len(found))]]
    rows += [[kind, *(str(len(findings.problems[kind])) for findings in found.values())] for kind in KINDS]
    note = "Not the complete dataset: the lists of images differ from the published ones." if published else ""
    return Table(name, ["", *found], rows, note if published != tuple(images) else "")


def frequencies(classes: Sequence[str], found: Mapping[str, Findings]) -> Table:
    """Per class and split: the number of images that show it, and its share of all pixels."""
    names = {**dict(enumerate(classes)), IGNORE: VOID}
    rows = []
    for dataset_id, name in names.items():
        row = [name]
        for findings in found.values():
            share = 100 * findings.pixels[dataset_id] / max(1, findings.pixels.sum())
            row += [str(findings.shown_by[dataset_id]), f"{share:.2f}"]
        rows.append(row)
    headers = [f"{split}: {what}" for split in found for what in ("images", "% of pixels")]
    return Table("classes", ["class", *headers], rows)


def picture_sheet(source: Source, found: Mapping[str, Findings], colours: Colours) -> Figure:
    """Images that together show every class, overlaid with their masks, a few that were refused, and a legend."""
    splits = dict(zip(found, (source.train, source.val), strict=True))
    usable = {(split, index): ids for split, each in found.items() for index, ids in each.usable.items()}
    refused = {(split, index): kind for split, each in found.items() for index, kind in each.refused.items()}
    labelled = {image: ids - {0, IGNORE} for image, ids in usable.items()}
    chosen = varied_images(labelled, IMAGES)
    shown = list(refused.items())[: REFUSED if chosen else IMAGES]
    cells = [_refused(splits[split], index, kind) for (split, index), kind in shown]
    figure = _figure([*(_labelled(splits[split], index, colours) for split, index in chosen), *filter(None, cells)])
    ids = sorted(frozenset[int]().union(*(usable[image] for image in chosen)) - {0})
    names = {**dict(enumerate(source.classes)), IGNORE: VOID}
    if ids:
        add_legend(figure, {index: names[index] for index in ids}, colours)
    return figure


class Cell(NamedTuple):
    """A picture (H, W, 3) in 0 … 1 with a title."""

    picture: NDArray[np.float64]
    title: str
    colour: str = "black"


def _figure(cells: Sequence[Cell]) -> Figure:
    rows = max(1, math.ceil(len(cells) / COLUMNS))
    # The height of a row, relative to the width of a column.
    height = min(1.0, max((cell.picture.shape[0] / cell.picture.shape[1] for cell in cells), default=0.2))
    figure = Figure(figsize=(3.2 * COLUMNS, (3.2 * height + 0.4) * rows + 1), layout="constrained", dpi=110)
    axes = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for ax in axes:
        ax.axis("off")
    for ax, cell in zip(axes, cells, strict=False):
        ax.imshow(cell.picture, interpolation="nearest")
        write_in(ax.set_title("", fontsize=8, color=cell.colour), cell.title, "a name that no font here can draw")
    if not cells:
        figure.suptitle("No image of this dataset can be read: see the sentences of 'incseg data check'.", color=RED)
    return figure


def _labelled(split: Split, index: int, colours: Colours) -> Cell:
    """An image under its mask; void is pale, background is left as it is."""
    mask = _reduced(split.mask(index)[None])[0].numpy()
    image = _reduced(split.image(index)).permute(1, 2, 0).numpy()
    return Cell(painted(image, mask, colours), split.ids[index])


def _refused(split: Split, index: int, kind: str) -> Cell | None:
    """An image that was refused, and the file of its mask beside it as a picture, as far as they can be read."""
    pictures = []
    for path in split.files(index):
        with suppress(InputError):
            pictures.append(_reduced(torch.from_numpy(read_image(path)).permute(2, 0, 1)))
    if not pictures:
        return None
    size = (pictures[0].shape[1], pictures[0].shape[2])
    side_by_side = torch.cat([resize_nearest(picture, size) for picture in pictures], dim=-1)
    return Cell(side_by_side.permute(1, 2, 0).numpy() / 255, f"{split.ids[index]}: {kind}", RED)


def _reduced(pixels: Tensor) -> Tensor:
    """Every n-th pixel of (C, H, W), so that the longer side is at most ``LONGEST_SIDE``."""
    every = max(1, math.ceil(max(pixels.shape[1:]) / LONGEST_SIDE))
    return torch.as_tensor(pixels)[:, ::every, ::every]
