"""Small datasets on disk and steps without data, for the tests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image

from incseg.batch import Batch
from incseg.curriculum.curriculum import Library
from incseg.datasets import Split, shapes
from incseg.datasets.shapes import CLASSES, draw
from incseg.images import index_image
from incseg.methods import Context
from incseg.models import Segmenter
from incseg.protocol import Step

TINY_CLASSES = CLASSES[:5]


def context(
    step: Step, student: Segmenter, teacher: Segmenter | None, batches: Callable[[], Iterable[Batch]] = list
) -> Context:
    """A step with the batches of one epoch, and without images to replay."""
    passes = lambda epochs: (batch for _ in range(epochs) for batch in batches())  # noqa: E731
    return Context(step, student, teacher, passes, library=cast(Library, None))


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


def write_saliency(split: Split, folder: Path, shown: Sequence[int]) -> Path:
    """Saliency maps of a detector that finds exactly these ids."""
    for index, name in enumerate(split.ids):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.isin(split.mask(index).numpy(), shown) * 255).astype(np.uint8)).save(path)
    return folder


def fewer_shapes() -> None:
    """The embedded dataset with a tenth of its images, in this process: every command and step runs as with all."""
    shapes.TRAIN_IMAGES, shapes.VAL_IMAGES = 64, 16
    shapes._source.cache_clear()


def into_subfolders(root: Path, places: Sequence[str]) -> Path:
    """Move the images of a folder with lists into subfolders, in turns."""
    for split in ("train", "val"):
        names = (root / f"{split}.txt").read_text().split()
        moved = [f"{places[index % len(places)]}/{name}" for index, name in enumerate(names)]
        (root / f"{split}.txt").write_text("\n".join(moved))
        for kind, name, new in (
            (kind, *pair) for kind in ("images", "masks") for pair in zip(names, moved, strict=True)
        ):
            (root / kind / new).parent.mkdir(exist_ok=True)
            (root / kind / f"{name}.png").rename(root / kind / f"{new}.png")
    return root


def stripes(ids: Sequence[int], height: int = 4) -> Image.Image:
    """A mask of upright stripes, two pixels wide, one for each id."""
    return index_image(np.tile(np.repeat(np.array(ids, np.uint8), 2), (height, 1)))


def write_pair(image: Path, mask: Path, ids: Sequence[int]) -> None:
    for path in (image, mask):
        path.parent.mkdir(parents=True, exist_ok=True)
    truth = stripes(ids)
    truth.save(mask)
    truth.convert("RGB").save(image)


def write_ade20k(root: Path, train: Mapping[str, Sequence[int]], val: Mapping[str, Sequence[int]]) -> Path:
    """An ADE20K-shaped tree; each image shows stripes of the given ids."""
    for split, scenes in (("training", train), ("validation", val)):
        for name, ids in scenes.items():
            write_pair(root / "images" / split / f"{name}.jpg", root / "annotations" / split / f"{name}.png", ids)
    return root


def write_cityscapes(root: Path, train: Mapping[str, Sequence[int]], val: Mapping[str, Sequence[int]]) -> Path:
    """A Cityscapes-shaped tree; names start with their city, and each image shows stripes of the given label ids."""
    for split, scenes in (("train", train), ("val", val)):
        for name, ids in scenes.items():
            inside = f"{split}/{name.split('_')[0]}/{name}"
            image, mask = f"leftImg8bit/{inside}_leftImg8bit.png", f"gtFine/{inside}_gtFine_labelIds.png"
            write_pair(root / image, root / mask, ids)
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
