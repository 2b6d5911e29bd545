"""The pictures that runs saved, packed into the page: images as JPEG, label maps as compressed bytes."""

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
from incseg.results import Run

LONGEST_SIDE = 480  # pixels; more than a column of the page shows
MOST_BYTES = 8_000_000  # of the page that pictures may take

PackedMap = str | None  # base64 of zlib of one byte per pixel, row by row; None where the run saved no picture


@dataclass(frozen=True)
class PackedImage:
    """One validation image through all steps."""

    name: str
    width: int
    height: int
    image: str
    """A data URI."""
    truth: Sequence[PackedMap]
    """By step: ground truth without the classes of later steps."""
    predictions: Sequence[Sequence[PackedMap]]
    """By run, then by step."""

    @property
    def num_bytes(self) -> int:
        """The space it takes on the page."""
        maps = [self.truth, *self.predictions]
        return len(self.image) + sum(len(packed or "") for row in maps for packed in row)


@dataclass(frozen=True)
class Album:
    """The images that fit on the page, and the number of those that do not."""

    images: Sequence[PackedImage]
    left_out: int

    def to_json(self) -> list[dict[str, Any]]:
        """For the page's script."""
        return [asdict(image) for image in self.images]


def collect_album(runs: Sequence[Run], most_bytes: int = MOST_BYTES) -> Album:
    """Pack the pictures of some runs in the order of their names, until the space is used up."""
    folders = [[run.pictures(step) for step in range(len(runs[0].steps))] for run in runs]
    found = [path for row in folders for folder in row for path in folder.glob("*.image.jpg")]
    files = {path.name.removesuffix(".image.jpg"): path for path in found}
    images: list[PackedImage] = []
    for name in sorted(files):
        image = _pack(name, files[name], folders)
        most_bytes -= image.num_bytes
        if most_bytes < 0:
            break
        images.append(image)
    return Album(images, left_out=len(files) - len(images))


def _pack(name: str, file: Path, folders: Sequence[Sequence[Path]]) -> PackedImage:
    """``folders`` by run, then by step; the ground truth of a step is taken from the first run that saved it."""
    image = open_picture(file).convert("RGB")
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    truths = [[folder / f"{name}.truth.png" for folder in same_step] for same_step in zip(*folders, strict=True)]
    predictions = [[folder / f"{name}.prediction.png" for folder in row] for row in folders]
    return PackedImage(
        name,
        *image.size,
        image=_data_uri(image),
        truth=[_pack_map(next(filter(Path.is_file, files), None), image.size) for files in truths],
        predictions=[[_pack_map(path if path.is_file() else None, image.size) for path in row] for row in predictions],
    )


def _pack_map(path: Path | None, size: tuple[int, int]) -> PackedMap:
    if path is None:
        return None
    channels = open_picture(path).resize(size, Image.Resampling.NEAREST)
    return base64.b64encode(zlib.compress(np.asarray(channels, np.uint8).tobytes(), 9)).decode()


def _data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def open_picture(path: Path) -> Image.Image:
    """A picture that a run saved."""
    try:
        with Image.open(path) as image:
            image.load()
            return image
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as a picture ({error}); delete it and write the report again."
        ) from None
