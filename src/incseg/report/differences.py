"""The agreement of an extended model with the one before: a table, and pictures of where they differ most."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from incseg.console import Table, percent
from incseg.metrics import nan_if_none
from incseg.report.album import open_picture
from incseg.results import Run

LONGEST_SIDE = 320  # pixels
MOST = 6  # pictures of a run on the page


@dataclass(frozen=True)
class Difference:
    """An image, and the classes of both models on it, as pictures in data URIs."""

    name: str
    image: str
    before: str
    after: str
    share: str
    """Of the pixels that differ."""


def agreement_table(run: Run) -> Table | None:
    """IoU between the two models' maps for every old class; None for a run that is no extension."""
    found = run.agreement
    if found is None:
        return None
    rows = [
        [name, percent(nan_if_none(value)), percent(found["shares"][name])] for name, value in found["classes"].items()
    ]
    rows.append(["mean of old classes", percent(nan_if_none(found["mean"])), ""])
    which = "held-out" if found["held_out"] else "training"
    note = (
        f"On {found['images']} {which} images of the new folder, where no new class is labelled: IoU between the maps "
        "of the two models. 100: nothing has changed. It says what has changed, not what was right; the mean is over "
        "classes that cover at least 0.1 % of these pixels."
    )
    return Table("agreement with the model before (%)", ["class", "agreement", "share before"], rows, note)


def differences(run: Run) -> list[Difference]:
    """The images on which the two models differ most."""
    found = sorted(run.files.agreement.glob("*.image.jpg"))[:MOST] if run.agreement is not None else []
    return [_difference(path) for path in found]


def _difference(path: Path) -> Difference:
    stem = path.name.removesuffix(".image.jpg")
    before, after = (open_picture(path.with_name(f"{stem}.{name}.png")) for name in ("before", "after"))
    old, new = np.asarray(before), np.asarray(after)
    compared = old != 255
    differing = float(((old != new) & compared).sum() / max(compared.sum(), 1))
    image, one, two = (_data_uri(picture) for picture in (open_picture(path), before, after))
    return Difference(stem.partition("-")[2], image, one, two, percent(differing))


def _data_uri(picture: Image.Image) -> str:
    """Photographs as JPEG; maps of classes as PNG, in which no colours mix."""
    is_map = picture.mode == "P"
    kind, resample = ("png", Image.Resampling.NEAREST) if is_map else ("jpeg", Image.Resampling.BICUBIC)
    small = picture.convert("RGB")
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE), resample=resample)
    buffer = io.BytesIO()
    small.save(buffer, kind)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def agreement_tables(runs: Sequence[Run]) -> list[Table]:
    """Of all runs that are extensions; with several, each with its name."""
    found = [(run, agreement_table(run)) for run in runs]
    named = [(run, table) for run, table in found if table is not None]
    if len(runs) == 1:
        return [table for _, table in named]
    return [Table(f"{run.label}: {table.title}", table.headers, table.rows, table.note) for run, table in named]
