"""Images and masks in files: the split of every dataset on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.source import Split
from incseg.errors import InputError
from incseg.images import ClassIds, check_image, image_shape, read_image, read_mask, require_intact

NOT_LISTED = -1  # in a table: no class has this value

if TYPE_CHECKING:
    from torch import Tensor

    from incseg.sizes import Size


class FileSplit(Split):
    """Images and index masks on disk.

    Args:
        ids: a name for each image.
        images: its file.
        masks: the file of its mask.
        table: (256,) the dataset's id for each value in a mask file, where they differ; −1: refused.
    """

    def __init__(
        self,
        ids: Sequence[str],
        images: Sequence[Path],
        masks: Sequence[Path],
        table: NDArray[np.uint8] | NDArray[np.int16] | None = None,
    ):
        self.ids, self.images, self.masks, self.table = ids, images, masks, table

    def subset(self, indices: Sequence[int]) -> "FileSplit":
        """Some of its images, in this order."""
        images, masks = ([files[index] for index in indices] for files in (self.images, self.masks))
        return FileSplit([self.ids[index] for index in indices], images, masks, self.table)

    def followed_by(self, other: "FileSplit") -> "FileSplit":
        """Its images, then those of another split of the same dataset."""
        images, masks = [*self.images, *other.images], [*self.masks, *other.masks]
        return FileSplit([*self.ids, *other.ids], images, masks, self.table)

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
            ids = self._translated(ids, path)
        return as_tensor(ids)

    def _translated(self, values: ClassIds, path: Path) -> NDArray[np.uint8]:
        assert self.table is not None
        ids = self.table[values]
        if ids.min(initial=0) == NOT_LISTED:
            unknown = int(values[ids == NOT_LISTED].min())
            raise InputError(
                f"the mask {path} holds the value {unknown}, which no line of classes.txt has; write "
                f"'NAME = {unknown}' there."
            )
        return ids.astype(np.uint8)

    def shape(self, index: int) -> "Size":
        """As the header of the image says."""
        return image_shape(self.images[index])

    def check(self, index: int) -> None:
        """The image must be complete."""
        check_image(self.images[index])

    def require_intact(self, index: int) -> None:
        """Both the image and the mask."""
        require_intact(self.images[index], "image")
        require_intact(self.masks[index], "mask")

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
