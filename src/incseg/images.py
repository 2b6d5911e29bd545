"""The one reader of image and mask files, for training, scoring, checking and prediction; and index images."""

import glob
import itertools
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from incseg.colours import DISTINCT, Colours, palette
from incseg.errors import InputError
from incseg.files import expanded

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"}
Pixels = NDArray[np.uint8]  # (H, W, 3) RGB
ImageLike = str | Path | Image.Image | Pixels
ClassIds = NDArray[np.uint8] | NDArray[np.int32]  # (H, W)
DEPTHS = (8, 10, 12, 14, 16, 24, 32)  # bits per brightness value, as cameras and scanners have them
LARGEST = 500_000_000  # pixels: 22 000 × 22 000, 1.5 GB of RGB; Pillow refuses 179 million, and satellites give more
MIRRORED_OR_TURNED, TURNED_SIDEWAYS = range(2, 9), range(5, 9)  # values of the EXIF orientation
# A complete file has these bytes near its end; a copy or download that broke off does not.
ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
NEAR_THE_END = 64  # bytes
WHITE, SALIENT_FROM = 255, 128  # of a saliency map
GREY = ("1", "L")  # modes of Pillow with one channel of at most 8 bits
_PILLOW_LIMIT = Lock()


def read_image(image: ImageLike) -> Pixels:
    """Any image as upright 8-bit RGB: a file, a Pillow image, or an array that is RGB already."""
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise InputError(f"an image array must be (H, W, 3) uint8 RGB, not {image.shape} {image.dtype}.")
        return image
    if isinstance(image, Image.Image):
        return np.array(_to_rgb(_upright(image)))
    if not isinstance(image, (str, Path)):
        raise InputError(f"an image must be a file, a Pillow image or an array (H, W, 3), not {type(image).__name__}.")
    with _opened(image, "image") as opened:
        return np.array(_to_rgb(_upright(opened)))


def read_mask(path: Path, image: Path | None = None) -> ClassIds:
    """The class ids in a mask file; it must have the size of its image, if that is given.

    A mask has one channel, or several that are equal: many programs save grey as red, green and blue.
    Both are compared upright: a photo is turned as its EXIF orientation says, and its mask usually has none of its own,
    because annotation tools show the photo upright and save the mask as drawn.
    """
    with _opened(path, "mask") as mask:
        if mask.format == "JPEG":
            raise InputError(
                f"the mask {path} is a JPEG, which changes ids along every border of a class: export it once more, as "
                "PNG, from the program that made it; a JPEG saved as PNG keeps the wrong ids."
            )
        if image is not None:
            _require_same_size(path, mask, image)
        ids = _one_channel(np.array(_upright(mask)))
        if ids is None:
            raise InputError(
                f"the mask {path} holds {mask.mode} colours, not class ids: save masks as single-channel PNG in which "
                "each pixel is the id of its class (0 background, 255 ignored)."
            )
    return ids if ids.dtype == np.uint8 else ids.astype(np.int32)


def read_saliency(path: Path) -> NDArray[np.bool_]:
    """(H, W) where a grey map, upright, says that something stands out: from 128 on, or 1 where it has one bit a pixel.

    Like a mask it has one channel, or several that are equal.
    """
    with _opened(path, "saliency map") as opened:
        return _salient(path, opened)


def saliency_shape(path: Path) -> tuple[int, int]:
    """Height and width of a saliency map, upright; refuses colours. Only what its header calls grey is not decoded."""
    with _opened(path, "saliency map") as opened:
        if opened.mode not in GREY:
            _salient(path, opened)
        width, height = _upright_size(opened)
        return height, width


def _salient(path: Path, opened: Image.Image) -> NDArray[np.bool_]:
    shown = opened.convert("RGB") if opened.mode.startswith("P") else opened  # a palette's numbers mean nothing
    values = _one_channel(np.array(_upright(shown)))
    if values is None or values.max(initial=0) > WHITE:
        raise InputError(
            f"the saliency map {path} holds {opened.mode} values, not 8-bit grey: save maps as single-channel PNG, "
            f"from 0 (nothing stands out) to {WHITE}."
        )
    return values if values.dtype == np.bool_ else np.asarray(values >= SALIENT_FROM)


def _one_channel(pixels: NDArray[Any]) -> NDArray[Any] | None:
    """(H, W) of an array that holds whole numbers, or the same number in each channel and is opaque; None: colours."""
    if pixels.dtype.kind not in "biu":
        return None
    if pixels.ndim == 2:
        return pixels
    if pixels.shape[2] in (2, 4):  # with transparency
        if (pixels[..., -1] != 255).any():
            return None
        pixels = pixels[..., :-1]
    grey: NDArray[Any] = pixels[..., 0]
    return grey if (pixels == grey[..., None]).all() else None


def _require_same_size(path: Path, mask: Image.Image, image: Path) -> None:
    with _opened(image, "image") as photo:
        size, expected = _upright_size(mask), _upright_size(photo)
        if size != expected:
            turned = "" if expected == photo.size else ", turned upright as its EXIF orientation says,"
            raise InputError(
                f"the mask {path} is {size[0]}×{size[1]} but its image{turned} is {expected[0]}×{expected[1]}: they "
                "must have the same size."
            )


def image_shape(path: Path) -> tuple[int, int]:
    """Height and width of an image file, upright; only its header is read."""
    with _opened(path, "image") as image:
        width, height = _upright_size(image)
        return height, width


def check_image(path: Path) -> None:
    """Refuse a file that cannot be read or is cut off; it is decoded only if its last bytes leave that open."""
    with _opened(path, "image") as image:
        ending = ENDINGS.get(image.format or "")
        if ending is None or ending not in _last_bytes(path):
            image.load()


def require_intact(path: Path, kind: str) -> None:
    """Refuse a file whose own checksums do not hold. PNG has one for every part of the file, most formats have none.

    Decoding alone does not compare them: about one flipped bit in a hundred then only changes a few pixels.
    """
    with _opened(path, kind) as image:
        image.verify()


def _last_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - NEAR_THE_END))
        return file.read()


@contextmanager
def _opened(path: str | Path, kind: str) -> Iterator[Image.Image]:
    """An image file, to be decoded inside the block: Pillow decodes late, so errors may come until the block ends."""
    try:
        with _open_of_any_size(path) as image:
            if image.width * image.height > LARGEST:
                size, most = f"{image.width}×{image.height}", f"{LARGEST / 1e6:g} million pixels"
                raise InputError(f"the {kind} {path} is {size}: at most {most} are read; cut it into pieces.")
            yield image
    except FileNotFoundError:
        raise InputError(f"the {kind} {path} is missing.") from None
    except UnidentifiedImageError:
        raise InputError(f"the {kind} {path} cannot be read: it is not an image file.") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"the {kind} {path} cannot be read ({error}); is it complete?") from None


def _open_of_any_size(path: str | Path) -> Image.Image:
    """Read a file's header. Pillow's size limit is global, so only one thread at a time lifts it."""
    with _PILLOW_LIMIT:
        usual, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(path)
        finally:
            Image.MAX_IMAGE_PIXELS = usual


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) where there is none or the EXIF block is damaged, as in many web photos.

    Only what a file says before its pixels counts: Pillow would decode a whole PNG to look for EXIF after them, and
    the size of an image could not be told from its header.
    """
    try:
        orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except (SyntaxError, ValueError, KeyError, TypeError, OSError, struct.error):
        return 1
    return int(orientation) if orientation in MIRRORED_OR_TURNED else 1


def _upright(image: Image.Image) -> Image.Image:
    return image if _orientation(image) == 1 else ImageOps.exif_transpose(image)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height after turning; of a TIFF, Pillow gives these already."""
    sideways = image.format != "TIFF" and _orientation(image) in TURNED_SIDEWAYS
    return (image.height, image.width) if sideways else image.size


def _to_rgb(image: Image.Image) -> Image.Image:
    """Colours as they are, brightness scaled to 8 bits, and what is transparent shown on white."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_8_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # Pillow would copy it


def _to_8_bits(values: NDArray[np.generic]) -> Pixels:
    """Scale by the smallest usual depth that holds the brightest pixel; floats up to 1 are fractions of white.

    A file of 16 bits often holds 10 or 12: scaled by the full range it would be almost black.
    """
    brightness = np.nan_to_num(values.astype(np.float64), posinf=0.0).clip(min=0)
    brightest = brightness.max(initial=0)
    if values.dtype.kind == "f" and brightest <= 1:
        white = 1.0
    else:
        white = next((2.0**bits - 1 for bits in DEPTHS if brightest < 2**bits), brightest)
    return (brightness * (255 / white)).round().astype(np.uint8)


def read_colours(path: Path) -> Pixels:
    """A mask that shows classes as colours, as RGB; transparency is left out."""
    with _opened(path, "mask") as mask:
        return np.array(_upright(mask).convert("RGB"))


@dataclass(frozen=True)
class ImageFile:
    """An image file, and the name of its outputs: a path without suffix, relative to the output folder."""

    path: Path
    name: str


def find_images(given: Sequence[str | Path], leave_out: Path | None = None) -> list[ImageFile]:
    """The images that files, folders (searched recursively) and glob patterns name, each once, in order.

    Outputs are named after the image, relative to the folder it was found in: ``photos/a/x.jpg`` of the folder
    ``photos`` becomes ``a/x``. Where two names would be the same, they keep the suffix, and get a number if that is not
    enough. Files below ``leave_out``, the output folder, are skipped.
    """
    excluded = None if leave_out is None else leave_out.resolve()
    found: dict[Path, tuple[Path, Path]] = {}  # resolved path -> the path as given, and relative to its folder
    for text in given:
        images = [(path.resolve(), path, name) for path, name in _images_of(expanded(Path(text)))]
        images = [image for image in images if excluded not in image[0].parents]
        if not images:
            suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
            raise InputError(f"'{text}' matches no image: give files, folders or patterns (looked for {suffixes}).")
        for resolved, path, name in images:
            found.setdefault(resolved, (path, name))
    names = _distinct_names([name for _, name in found.values()])
    return [ImageFile(path, name) for (path, _), name in zip(found.values(), names, strict=True)]


def _images_of(path: Path) -> list[tuple[Path, Path]]:
    """Each image, as a path and relative to the folder that was given (of a pattern: its part without wildcards)."""
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


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """A name per path, without its suffix; in linear time, as folders may hold many thousands of images."""
    stems = [path.with_suffix("").as_posix() for path in paths]
    shared = Counter(stems)
    names: dict[str, None] = {}
    numbers: Counter[str] = Counter()  # how many numbers were tried for a name: those are taken and stay so
    for stem, path in zip(stems, paths, strict=True):
        wanted = name = stem if shared[stem] == 1 else f"{stem}_{path.suffix.removeprefix('.')}"
        while name in names:
            numbers[wanted] += 1
            name = f"{wanted}-{numbers[wanted] + 1}"
        names[name] = None
    return list(names)


def index_image(ids: NDArray[np.uint8], colours: Colours = DISTINCT) -> Image.Image:
    """(H, W) ids as a PNG-ready index image with the palette inside."""
    picture = Image.fromarray(ids, mode="P")
    picture.putpalette(palette(colours).ravel().tolist())
    return picture
