"""Images and index masks on disk, and every way in which such a file can be wrong."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from incseg.datasets.source import Split
from incseg.errors import InputError

# Near its end a complete file has these bytes; a copy or download that broke off lacks them.
ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
NEAR = 64


class FileSplit(Split):
    """Images and index masks on disk.

    Args:
        ids: a name for each image.
        images: its file.
        masks: the file of its mask.
        table: (256,) the dataset's id of each id in a mask file, where these differ.
    """

    def __init__(
        self,
        ids: Sequence[str],
        images: Sequence[Path],
        masks: Sequence[Path],
        table: NDArray[np.uint8] | None = None,
    ):
        self.ids, self.images, self.masks, self.table = ids, images, masks, table

    def image(self, index: int) -> Tensor:
        """(3, H, W) uint8 RGB."""
        return read_image(self.images[index])

    def mask(self, index: int) -> Tensor:
        """(H, W) class ids; refuses a mask of colours or one whose size is not its image's."""
        path = self.masks[index]
        with _opened(path, "mask") as picture, _opened(self.images[index], "image") as image:
            if picture.mode not in ("P", "L", "1", "I", "I;16"):
                raise InputError(
                    f"the mask {path} holds {picture.mode} colours, not class ids: save masks as single-channel PNG in "
                    "which each pixel is the id of its class (0 background, 255 ignored)."
                )
            if picture.size != image.size:
                raise InputError(
                    f"the mask {path} is {picture.size[0]}×{picture.size[1]} but its image is "
                    f"{image.size[0]}×{image.size[1]}: they must have the same size."
                )
            ids = np.array(picture)
        if self.table is not None:
            if ids.max(initial=0) >= len(self.table):
                raise InputError(f"the mask {path} holds the id {ids.max()}, which this dataset does not have.")
            ids = self.table[ids]
        return torch.from_numpy(ids if ids.dtype == np.uint8 else ids.astype(np.int32))

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
        """Names, sizes and modification times of all files, and what the ids in them mean."""
        files = (*self.images, *self.masks)
        stats = [f"{path} {(stat := path.stat()).st_size} {stat.st_mtime_ns}" for path in files]
        return "\n".join(stats) + ("" if self.table is None else self.table.tobytes().hex())


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - NEAR))
        return file.read()


def check_image(path: Path) -> None:
    """A complete file ends as its format says; one that does not is decoded to see."""
    with _opened(path, "image") as picture:
        ending = ENDINGS.get(picture.format or "")
        if ending is None or ending not in _tail(path):
            picture.load()


def read_image(path: Path) -> Tensor:
    """(3, H, W) uint8 RGB, or a sentence on why the file cannot be read."""
    with _opened(path, "image") as picture:
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)


class _opened:  # noqa: N801 - reads as a verb where it is used
    """Open and decode an image file, or say which file cannot be read."""

    def __init__(self, path: Path, kind: str):
        self.path, self.kind = path, kind

    def __enter__(self) -> Image.Image:
        try:
            self.picture = Image.open(self.path)
        except FileNotFoundError:
            raise InputError(f"the {self.kind} {self.path} is missing.") from None
        except (UnidentifiedImageError, OSError) as error:
            raise self._unreadable(error) from None
        return self.picture

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.picture.close()
        # Pillow decodes lazily, so a truncated file shows itself only inside the block.
        if isinstance(error, OSError | SyntaxError):
            raise self._unreadable(error) from None

    def _unreadable(self, error: BaseException) -> InputError:
        return InputError(f"the {self.kind} {self.path} cannot be read ({error}); is it complete?")
