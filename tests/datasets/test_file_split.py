"""Training sees an image file as prediction does, and its mask lies on it whichever way the camera was held."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from incseg.datasets.file_split import FileSplit
from incseg.errors import InputError

WIDE, HIGH = (20, 40), (40, 20)  # rows and columns
SIDEWAYS = 6  # the EXIF orientation of a photo that must be turned clockwise to stand upright


def pair(folder: Path, name: str = "photo.png") -> FileSplit:
    return FileSplit(["photo"], [folder / name], [folder / "mask.png"])


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def half_and_half(shape: tuple[int, int]) -> np.ndarray:
    """A mask or an image whose upper half is 1."""
    ids = np.zeros(shape, np.uint8)
    ids[: shape[0] // 2] = 1
    return ids


def test_a_16_bit_image_is_not_white(tmp_path: Path) -> None:
    bright = np.array([[0, 16384, 32768, 65535]], np.uint16)
    Image.fromarray(bright).save(tmp_path / "photo.png")
    assert pair(tmp_path).image(0)[0].tolist() == [[0, 64, 128, 255]]


def test_an_image_of_floats_is_not_black(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 0.25, 1]], np.float32)).save(tmp_path / "photo.tif")
    assert pair(tmp_path, "photo.tif").image(0)[0].tolist() == [[0, 64, 255]]


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (0, 0, 0, 0)).save(tmp_path / "photo.png")
    assert pair(tmp_path).image(0).unique().tolist() == [255]


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg", "photo.tif"])
def test_ordinary_photographs_are_read_as_pillow_reads_them(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (*WIDE, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / name)
    expected = np.array(Image.open(tmp_path / name).convert("RGB"))
    assert np.array_equal(pair(tmp_path, name).image(0).permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg", "photo.tif"])
def test_a_turned_photo_is_upright_and_so_is_its_mask(tmp_path: Path, name: str) -> None:
    upright = half_and_half(WIDE)
    stored = np.rot90(upright)  # the camera was held sideways
    Image.fromarray(stored * 255).convert("RGB").save(tmp_path / name, exif=turned(SIDEWAYS))
    Image.fromarray(upright).save(tmp_path / "mask.png")
    split = pair(tmp_path, name)
    split.check(0)
    assert torch.equal(split.image(0)[0] > 127, split.mask(0) == 1)
    assert split.mask(0).shape == WIDE


def test_a_mask_is_turned_as_its_own_orientation_says(tmp_path: Path) -> None:
    Image.new("RGB", (WIDE[1], WIDE[0])).save(tmp_path / "photo.png")
    Image.fromarray(np.rot90(half_and_half(WIDE))).save(tmp_path / "mask.png", exif=turned(SIDEWAYS))
    assert np.array_equal(pair(tmp_path).mask(0).numpy(), half_and_half(WIDE))


def test_a_mask_drawn_on_the_pixels_as_they_lie_in_the_file_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (HIGH[1], HIGH[0])).save(tmp_path / "photo.jpg", exif=turned(SIDEWAYS))
    Image.fromarray(half_and_half(HIGH)).save(tmp_path / "mask.png")
    with pytest.raises(InputError, match=r"is 20×40 but its image, turned upright .*, is 40×20: they must have the"):
        pair(tmp_path, "photo.jpg").mask(0)


def test_a_damaged_exif_block_does_no_harm(tmp_path: Path) -> None:
    Image.new("RGB", (8, 4), "red").save(tmp_path / "photo.jpg", exif=b"Exif\0\0nothing of the kind")
    Image.new("L", (8, 4), 3).save(tmp_path / "mask.png")
    split = pair(tmp_path, "photo.jpg")
    assert split.image(0).shape == (3, 4, 8)
    assert split.mask(0).unique().tolist() == [3]
