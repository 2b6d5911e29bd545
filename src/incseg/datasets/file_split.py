"""Images and masks in files: the split of every dataset on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.source import Split
from incseg.errors import InputError
from incseg.images import check_image, read_image, read_mask

if TYPE_CHECKING:
    from torch import Tensor


class FileSplit(Split):
    """Images and index masks on disk.

    Args:
        ids: a name for each image.
        images: its file.
        masks: the file of its mask.
        table: (256,) the dataset's id for each id in a mask file, where they differ.
    """

    def __init__(
        self,
        ids: Sequence[str],
        images: Sequence[Path],
        masks: Sequence[Path],
        table: NDArray[np.uint8] | None = None,
    ):
        self.ids, self.images, self.masks, self.table = ids, images, masks, table

    def image(self, index: int) -> "Tensor":
        """(3, H, W) uint8 RGB."""
        return image_tensor(self.images[index])

    def mask(self, index: int) -> "Tensor":
        """(H, W) class ids; refuses a mask of colours or one whose size is not its image's."""
        path = self.masks[index]
        ids = read_mask(path, self.images[index])
        if self.table is not None:
            if ids.max(initial=0) >= len(self.table):
                raise InputError(f"the mask {path} holds the id {ids.max()}, which this dataset does not have.")
            ids = self.table[ids]
        return as_tensor(ids)

    def check(self, index: int) -> None:
        """The image must be complete."""
        check_image(self.images[index])

    def files(self, index: int) -> tuple[Path, Path]:
        """The image and its mask."""
        return self.images[index], self.masks[index]

    def where(self, index: int) -> str:
        """The mask's path."""
        return str(self.masks[index])

    def fingerprint(self) -> str:
        """Names, sizes and modification times of all files, and the table of ids."""
        files = (*self.images, *self.masks)
        stats = [f"{path} {(stat := path.stat()).st_size} {stat.st_mtime_ns}" for path in files]
        return "\n".join(stats) + ("" if self.table is None else self.table.tobytes().hex())


def image_tensor(path: Path) -> "Tensor":
    """(3, H, W) uint8 RGB of an image file."""
    return as_tensor(read_image(path)).permute(2, 0, 1)


def as_tensor(values: NDArray[Any]) -> "Tensor":
    """The same values; PyTorch is imported only here, as a dataset can be opened, or refused, without it."""
    import torch  # noqa: PLC0415

    return torch.from_numpy(values)
