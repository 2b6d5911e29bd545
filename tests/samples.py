"""Small datasets on disk and steps without data, for the tests."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image

from incseg.batch import Batch
from incseg.data.library import Library
from incseg.data.palette import index_image
from incseg.data.shapes import CLASSES, draw
from incseg.methods import Context
from incseg.models import Segmenter
from incseg.protocol import Step

TINY_CLASSES = CLASSES[:5]


def context(
    step: Step, student: Segmenter, teacher: Segmenter | None, batches: Callable[[], Iterable[Batch]] = list
) -> Context:
    """A step whose images nobody asks for."""
    return Context(step, student, teacher, batches, library=cast(Library, None))


def write_folder(root: Path, train: int, val: int, size: int = 64) -> Path:
    """A folder dataset of drawn shapes with four foreground classes."""
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    for index in range(train + val):
        image, mask = draw(seed=1000 + index, size=size)
        ids = mask.numpy().copy()
        ids[(ids >= len(TINY_CLASSES)) & (ids != 255)] = 0
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / "images" / f"{index:03d}.png")
        index_image(ids.astype(np.uint8)).save(root / "masks" / f"{index:03d}.png")
    (root / "classes.txt").write_text("\n".join(TINY_CLASSES))
    (root / "train.txt").write_text("\n".join(f"{i:03d}" for i in range(train)))
    (root / "val.txt").write_text("\n".join(f"{i:03d}" for i in range(train, train + val)))
    return root
