"""What is refused of a prediction or an export before the model is opened: without PyTorch, which takes seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from incseg.errors import InputError
from incseg.files import usable_file, usable_folder
from incseg.images import ImageFile, find_images
from incseg.sizes import OVERLAP, STRIDE, TILE

Format = Literal["onnx", "pt2"]


def check_prediction(
    images: Sequence[str | Path], out: Path, *, batch_size: int, tile: int = TILE, longest_side: int | None = None
) -> list[ImageFile]:
    """The files to segment; refuses sizes that are not possible, and names that no image has."""
    if tile % STRIDE or tile <= OVERLAP:
        raise InputError(f"a tile of {tile} pixels is not possible: use a multiple of {STRIDE} above {OVERLAP}.")
    if not images:
        raise InputError("name at least one image, folder or pattern: incseg predict MODEL IMAGES… --out DIR.")
    if batch_size < 1:
        raise InputError(f"a batch of {batch_size} images is not possible: use 1 or more.")
    if longest_side is not None:
        check_longest_side(longest_side)
    usable_folder(out)
    return find_images(images, leave_out=out)


def check_longest_side(longest_side: int) -> None:
    """Refuse a side that the network cannot see."""
    if longest_side < STRIDE:
        raise InputError(f"a longest side of {longest_side} pixels is too small: use {STRIDE} or more.")


def check_export(out: Path, kind: Format | None) -> Format:
    """The format of the file to write, told by its name where it is not given."""
    if kind is None and out.suffix not in (".onnx", ".pt2"):
        raise InputError(f"the format cannot be told from the name '{out}': end it in .onnx or .pt2, or give --format.")
    usable_file(out)
    return kind or ("onnx" if out.suffix == ".onnx" else "pt2")


def check_quantising(out: Path, folder: Path) -> list[Path]:
    """The images from which ranges are measured."""
    if out.suffix != ".onnx":
        raise InputError(f"--quantise writes ONNX, and {out} does not end in .onnx.")
    if not folder.is_dir():
        raise InputError(f"--quantise {folder} is not a folder: give images like those the model is to be used on.")
    usable_file(out)
    return [file.path for file in find_images([folder / "images" if has_masks(folder) else folder])]


def has_masks(folder: Path) -> bool:
    """Whether a folder of images has labels too."""
    return (folder / "classes.txt").is_file()
