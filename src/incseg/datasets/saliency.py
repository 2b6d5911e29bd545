"""Saliency maps of training images: what stands out in an image, told by a detector that knows no classes.

A map travels inside the mask of its image: where a pixel is salient, the highest bit of its id is flipped. So maps are
reduced, cropped, mirrored and kept in memory exactly as masks are, by the code that does it to masks.
"""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.file_split import as_tensor
from incseg.datasets.scan import in_threads
from incseg.datasets.source import Source, Split
from incseg.errors import InputError
from incseg.images import read_saliency, saliency_shape
from incseg.protocol import IGNORE

if TYPE_CHECKING:
    from torch import Tensor

    from incseg.sizes import Size

BIT = 128
MOST_CLASSES = BIT - 1  # background among them: 0 to 126 become 128 to 254, and 255, ignored, becomes 127
SALIENT_IDS = tuple(sorted(plain ^ BIT for plain in (*range(MOST_CLASSES), IGNORE)))


class SalientSplit(Split):
    """Images of another split; the ids of their masks say also what is salient. ``folder`` has a map per image."""

    def __init__(self, split: Split, folder: Path):
        self.ids, self.split, self.folder = split.ids, split, folder

    def image(self, index: int) -> "Tensor":
        """(3, H, W) uint8 RGB."""
        return self.split.image(index)

    def mask(self, index: int) -> "Tensor":
        """(H, W) class ids, with their highest bit flipped where the map says salient."""
        ids: NDArray[np.integer[Any]] = self.split.mask(index).numpy()
        salient = read_saliency(self.map(index))
        self._require_same_size(index, salient.shape, ids.shape)
        return as_tensor(np.where(salient, ids ^ BIT, ids))

    def map(self, index: int) -> Path:
        """The file of a map."""
        return self.folder / f"{self.ids[index]}.png"

    def shape(self, index: int) -> "Size":
        """As the split itself says."""
        return self.split.shape(index)

    def check(self, index: int) -> None:
        """The map must be grey, and of the size of its image; a damaged image is not its concern."""
        given, expected = saliency_shape(self.map(index)), None
        with suppress(InputError):
            expected = self.shape(index)
        self._require_same_size(index, given, expected or given)

    def files(self, index: int) -> tuple[Path, ...]:
        """Also the map."""
        return (*self.split.files(index), self.map(index))

    def where(self, index: int) -> str:
        """As the split itself says."""
        return self.split.where(index)

    def _require_same_size(self, index: int, given: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if given != expected:
            (height, width), (high, wide) = given, expected
            raise InputError(
                f"the saliency map {self.map(index)} is {width}×{height} but its image is {wide}×{high}: they must "
                "have the same size."
            )


def require_folder(folder: Path) -> None:
    """Refuse a folder of maps that is not there."""
    if not folder.is_dir():
        raise InputError(f"--data.saliency {folder} is not a folder; it must hold a grey PNG per training image.")


def require_maps(source: Source, folder: Path) -> None:
    """Refuse too many classes, no folder, and maps that are missing, not grey or of another size."""
    if len(source.classes) > MOST_CLASSES:
        raise InputError(
            f"--data.saliency is for at most {MOST_CLASSES - 1} classes and background, as ids and maps share a byte, "
            f"and {source.name} has {len(source.classes) - 1}: leave it out."
        )
    require_folder(folder)
    split = SalientSplit(source.train, folder)
    missing = [path for path in map(split.map, range(len(split))) if not path.is_file()]
    if missing:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(
            f"the saliency map {missing[0]} is missing{others}: --data.saliency needs a grey PNG for each of the "
            f"{len(split)} training images of {source.name}, named as the image, in the same subfolder if it is in one."
        )
    for _ in in_threads(split.check, len(split)):
        pass
