"""Images and masks as people have them: read in one way everywhere, and the colours in which classes are shown."""

import glob
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from incseg.errors import InputError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"}
Pixels = NDArray[np.uint8]  # (H, W, 3) RGB
Picture = str | Path | Image.Image | Pixels
DEPTHS = (8, 10, 12, 14, 16, 24, 32)  # bits of a brightness, as cameras and scanners have them
LARGEST = 1_000_000_000  # pixels: 3 GB of RGB; Pillow's own limit is meant for images from strangers
_LIMIT = Lock()


def read_image(picture: Picture) -> Pixels:
    """Any image as upright 8-bit RGB: a file, a Pillow image, or an array that is RGB already."""
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise InputError(f"an image array must be (H, W, 3) uint8 RGB, not {picture.shape} {picture.dtype}.")
        return picture
    if isinstance(picture, Image.Image):
        return np.array(_in_rgb(ImageOps.exif_transpose(picture)))
    try:
        with _opened(picture) as opened:
            if opened.width * opened.height > LARGEST:
                raise InputError(f"{picture} is {opened.width}×{opened.height}: at most {LARGEST:.0e} pixels fit.")
            return read_image(opened)
    except FileNotFoundError:
        raise InputError(f"there is no image {picture}.") from None
    except UnidentifiedImageError:
        raise InputError(f"{picture} is not an image that can be read.") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{picture} cannot be read ({error}); is it complete?") from None


def _in_rgb(picture: Image.Image) -> Image.Image:
    """Colours as they are, brightness scaled to 8 bits, and what is transparent shown on white."""
    if picture.mode.startswith(("I", "F")):
        return Image.fromarray(_in_8_bits(np.asarray(picture))).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture.convert("RGB")


def _in_8_bits(values: NDArray[np.generic]) -> Pixels:
    """Scale by the smallest usual depth that holds the brightest pixel; numbers up to 1 are shares of white.

    A file of 16 bits often holds 10 or 12: taken over the full range it would be almost black.
    """
    brightness = np.nan_to_num(values.astype(np.float64), posinf=0.0).clip(min=0)
    brightest = brightness.max(initial=0)
    if values.dtype.kind == "f" and brightest <= 1:
        white = 1.0
    else:
        white = next((2.0**bits - 1 for bits in DEPTHS if brightest < 2**bits), brightest)
    return (brightness * (255 / white)).round().astype(np.uint8)


def _opened(path: str | Path) -> Image.Image:
    """Read the head of a file. Pillow's limit on the size is one for all threads, so it is lifted by one at a time."""
    with _LIMIT:
        usual, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(path)
        finally:
            Image.MAX_IMAGE_PIXELS = usual


@dataclass(frozen=True)
class ImageFile:
    """An image on disk, and where among the outputs its own belong (a path without suffix)."""

    path: Path
    name: str


def find_images(given: Sequence[str | Path], leave_out: Path | None = None) -> list[ImageFile]:
    """Files, folders (with what lies below them) and glob patterns, each image once, in order.

    Outputs are named after the image, below the folder it was found in: ``photos/a/x.jpg`` of the folder ``photos``
    becomes ``a/x``. Where two would be named alike, their names keep the suffix, and are numbered if that is not
    enough. What lies below ``leave_out``, the folder of the outputs, is no input.
    """
    found: dict[Path, tuple[Path, Path]] = {}  # by the file it really is: its path, and its name below a folder
    for text in given:
        matches = [
            (path, name)
            for path, name in _images_of(Path(text).expanduser())
            if leave_out is None or leave_out.resolve() not in path.resolve().parents
        ]
        if not matches:
            suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
            raise InputError(f"'{text}' matches no image: give files, folders or patterns (looked for {suffixes}).")
        for path, name in matches:
            found.setdefault(path.resolve(), (path, name))
    names = _distinct([name for _, name in found.values()])
    return [ImageFile(path, name) for (path, _), name in zip(found.values(), names, strict=True)]


def _images_of(path: Path) -> list[tuple[Path, Path]]:
    if path.is_file():
        return [(path, Path(path.name))]
    if path.is_dir():
        return [(file, file.relative_to(path)) for file in sorted(path.rglob("*")) if _is_image(file)]
    base = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), path.parts))
    matches = map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - a pattern of any kind
    files = [file for match in matches for file, _ in (_images_of(match) if match.is_dir() or _is_image(match) else [])]
    return [(file, file.relative_to(base)) for file in files]


def _is_image(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in IMAGE_SUFFIXES


def _distinct(names: Sequence[Path]) -> list[str]:
    stems = [name.with_suffix("").as_posix() for name in names]
    wanted = [
        stem if stems.count(stem) == 1 else f"{stem}_{name.suffix.removeprefix('.')}"
        for stem, name in zip(stems, names, strict=True)
    ]
    taken: list[str] = []
    for name in wanted:
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        taken.append(next(free for free in itertools.chain([name], numbered) if free not in taken))
    return taken


def palette() -> NDArray[np.uint8]:
    """(256, 3) RGB: the bits of the id, lowest first, are dealt to the high bits of red, green and blue in turn."""
    colours = np.zeros((256, 3), np.uint8)
    ids = np.arange(256)
    for level in range(8):
        for channel in range(3):
            colours[:, channel] |= ((ids >> (3 * level + channel) & 1) << (7 - level)).astype(np.uint8)
    colours[255] = (224, 224, 192)
    return colours


def index_image(ids: NDArray[np.uint8]) -> Image.Image:
    """(H, W) ids as a PNG-ready index image with the palette inside."""
    picture = Image.fromarray(ids, mode="P")
    picture.putpalette(palette().ravel().tolist())
    return picture
