"""Small datasets on disk for the tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from incseg.data.palette import index_image
from incseg.data.shapes import CLASSES, draw

TINY_CLASSES = CLASSES[:5]


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


def write_classes(root: Path, names: Sequence[str], images: int, size: int = 64) -> Path:
    """A folder of drawn shapes in which only these classes are labelled; the others lie in the background."""
    table = np.zeros(256, np.uint8)
    table[255] = 255
    for index, name in enumerate(names, start=1):
        table[CLASSES.index(name)] = index
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for index in range(images):
        image, mask = draw(seed=2000 + index, size=size)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / "images" / f"{index:03d}.png")
        index_image(table[mask.numpy()]).save(root / "masks" / f"{index:03d}.png")
    (root / "classes.txt").write_text("\n".join(["background", *names]))
    return root
