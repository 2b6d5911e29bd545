"""The pictures that runs kept, packed into a page: images as JPEG, label maps as deflated channels."""

import base64
import io
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from incseg.errors import InputError
from incseg.run_folder import Run

SIDE = 480  # pixels; more than a column of the page shows
ROOM = 8_000_000  # bytes of the page that pictures may take

Map = str | None  # base64 of zlib of one byte per pixel, row by row; None where no picture was kept


@dataclass(frozen=True)
class Picture:
    """One validation image through all steps."""

    name: str
    width: int
    height: int
    image: str
    """A data URI."""
    truth: Sequence[Map]
    """By step: classes still to come are not in it."""
    predictions: Sequence[Sequence[Map]]
    """By run, then by step."""

    @property
    def weight(self) -> int:
        """Bytes it takes on the page."""
        maps = [self.truth, *self.predictions]
        return len(self.image) + sum(len(packed or "") for row in maps for packed in row)


@dataclass(frozen=True)
class Album:
    """As many pictures as there is room for, and the number of those there is not."""

    pictures: Sequence[Picture]
    left_out: int

    def to_json(self) -> list[dict[str, Any]]:
        """For the page's script."""
        return [asdict(picture) for picture in self.pictures]


def collect(runs: Sequence[Run], room: int = ROOM) -> Album:
    """The pictures of some runs, in the order of their names."""
    folders = [[run.pictures(step) for step in range(len(runs[0].steps))] for run in runs]
    images = [path for row in folders for folder in row for path in folder.glob("*.image.jpg")]
    files = {path.name.removesuffix(".image.jpg"): path for path in images}
    pictures: list[Picture] = []
    for name in sorted(files):
        picture = _picture(name, files[name], folders)
        room -= picture.weight
        if room < 0:
            break
        pictures.append(picture)
    return Album(pictures, left_out=len(files) - len(pictures))


def _picture(name: str, image: Path, folders: Sequence[Sequence[Path]]) -> Picture:
    picture = _open(image).convert("RGB")
    picture.thumbnail((SIDE, SIDE))
    truths = [[folder / f"{name}.truth.png" for folder in same_step] for same_step in zip(*folders, strict=True)]
    return Picture(
        name,
        *picture.size,
        image=_data_uri(picture),
        truth=[_packed(next(filter(Path.is_file, files), None), picture.size) for files in truths],
        predictions=[
            [_packed(_existing(folder / f"{name}.prediction.png"), picture.size) for folder in row] for row in folders
        ],
    )


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def _packed(path: Path | None, size: tuple[int, int]) -> Map:
    if path is None:
        return None
    channels = _open(path).resize(size, Image.Resampling.NEAREST)
    return base64.b64encode(zlib.compress(np.asarray(channels, np.uint8).tobytes(), 9)).decode()


def _data_uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as a picture ({error}); delete it and write the report again."
        ) from None
