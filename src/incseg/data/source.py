"""What a dataset is: class names, and two splits of images with masks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from incseg.discover import import_modules
from incseg.errors import InputError, closest
from incseg.protocol import IGNORE


class Split(ABC):
    """An ordered collection of images and their masks."""

    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def image(self, index: int) -> Tensor:
        """(3, H, W) uint8 RGB."""

    @abstractmethod
    def mask(self, index: int) -> Tensor:
        """(H, W) integer class ids of the dataset: 0 background, 255 ignored."""

    def check(self, index: int) -> None:  # noqa: B027 - what is not a file needs no check
        """Refuse an image that cannot be used, as far as that can be told without decoding it."""

    def where(self, index: int) -> str:
        """How to name this image to a person, in a message about its mask."""
        return self.ids[index]

    def fingerprint(self) -> str | None:
        """A text that changes whenever a file does, under which a scan may be cached; None: not worth caching."""
        return None


@dataclass(frozen=True)
class Source:
    """A dataset: ``classes`` by id (background first), images to learn from and images to be scored on."""

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split

    def __post_init__(self) -> None:
        if len(self.classes) > IGNORE:
            raise InputError(
                f"{self.name} has {len(self.classes)} classes; there can be at most {IGNORE} with background, since "
                f"the id {IGNORE} marks ignored pixels."
            )


class FileSplit(Split):
    """Images and index masks on disk."""

    def __init__(self, ids: Sequence[str], images: Sequence[Path], masks: Sequence[Path]):
        self.ids, self.images, self.masks = ids, images, masks

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
        return torch.from_numpy(ids if ids.dtype == np.uint8 else ids.astype(np.int32))

    def check(self, index: int) -> None:
        """A copy or download that broke off lacks the file's end."""
        path = self.images[index]
        with _opened(path, "image") as picture:
            kind = picture.format
            if kind == "JPEG":
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - 64))
                    if b"\xff\xd9" not in file.read():
                        raise InputError(f"the image {path} cannot be read (its end is missing); is it complete?")
            else:
                picture.verify()

    def where(self, index: int) -> str:
        """The mask's path."""
        return str(self.masks[index])

    def fingerprint(self) -> str:
        """Names, sizes and modification times of all files."""
        files = (*self.images, *self.masks)
        return "\n".join(f"{path} {(stat := path.stat()).st_size} {stat.st_mtime_ns}" for path in files)


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


def read_image(path: Path) -> Tensor:
    """(3, H, W) uint8 RGB, or a sentence on why the file cannot be read."""
    with _opened(path, "image") as picture:
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)


def read_lines(path: Path) -> list[str]:
    """The non-empty lines of a text file, stripped."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} is missing.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it in that encoding.") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def existing_root(root: Path | None, name: str, layout: str) -> Path:
    """The dataset's folder, or a sentence on what is expected there."""
    if root is None:
        raise InputError(f"the dataset '{name}' needs its folder: give --data-root DIR, which must hold {layout}.")
    if not root.is_dir():
        raise InputError(f"--data-root {root} is not a folder; for '{name}' it must hold {layout}.")
    return root


@dataclass(frozen=True)
class DatasetEntry:
    """A registered dataset: how to open it, and what a person should know before."""

    name: str
    summary: str
    tasks: tuple[str, ...]
    open: Callable[[Path | None], Source]


_DATASETS: dict[str, DatasetEntry] = {}


def dataset(
    name: str, summary: str, tasks: tuple[str, ...] = ()
) -> Callable[[Callable[[Path | None], Source]], Callable[[Path | None], Source]]:
    """Register ``open(root) -> Source`` under a name; ``tasks`` are those published for it."""

    def register(opener: Callable[[Path | None], Source]) -> Callable[[Path | None], Source]:
        assert name not in _DATASETS, f"two datasets are called '{name}'"
        _DATASETS[name] = DatasetEntry(name, summary, tasks, opener)
        return opener

    return register


def describe_datasets() -> list[DatasetEntry]:
    """Every registered dataset, by name."""
    import_modules("incseg.data")
    return [_DATASETS[name] for name in sorted(_DATASETS)]


def dataset_names() -> list[str]:
    """The names one may write in front of a protocol."""
    return [entry.name for entry in describe_datasets()]


def open_source(name: str, root: Path | None) -> Source:
    """Open a dataset by name; its files are listed, not yet read."""
    import_modules("incseg.data")
    if name not in _DATASETS:
        raise InputError(
            f"'{name}' is not a dataset: choose from {', '.join(sorted(_DATASETS))}.{closest(name, _DATASETS)}"
        )
    return _DATASETS[name].open(root)
