"""Data for benchmarks where none is given: drawn photos of 500×375 as JPEG files, as in VOC, with their masks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from incseg.datasets.scan import in_threads
from incseg.datasets.shapes import CLASSES, draw
from incseg.images import index_image

PROTOCOL = "folder/4-4/overlapped"  # the eight kinds of shapes in two steps
HEIGHT, WIDTH, QUALITY = 375, 500, 90
TRAIN, VAL = 48, 16


@contextmanager
def photo_folder() -> Iterator[Path]:
    """A folder dataset that exists inside ``with`` only."""
    with TemporaryDirectory() as name:
        root = Path(name)
        for place in ("images", "masks"):
            (root / place).mkdir()
        names = list(in_threads(lambda index: _write(root, index), TRAIN + VAL))
        (root / "classes.txt").write_text("\n".join(CLASSES), encoding="utf-8")
        (root / "train.txt").write_text("\n".join(names[:TRAIN]), encoding="utf-8")
        (root / "val.txt").write_text("\n".join(names[TRAIN:]), encoding="utf-8")
        yield root


def _write(root: Path, index: int) -> str:
    image, mask = draw(seed=index, size=WIDTH)
    name = f"{index:03d}"
    pixels = image.permute(1, 2, 0).numpy()[:HEIGHT]
    Image.fromarray(pixels).save(root / "images" / f"{name}.jpg", quality=QUALITY)
    index_image(mask.numpy()[:HEIGHT]).save(root / "masks" / f"{name}.png")
    return name
