from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from incseg import images
from incseg.errors import InputError
from incseg.images import ImageFile, find_images, read_image


@pytest.fixture
def gradient() -> np.ndarray:
    return np.tile(np.arange(0, 256, 4, dtype=np.uint8), (32, 1))


@pytest.mark.parametrize(("factor", "dtype"), [(257, np.uint16), (16, np.uint16), (1, np.uint16), (2**16, np.int32)])
def test_any_depth_becomes_8_bits(gradient: np.ndarray, factor: int, dtype: type, tmp_path: Path) -> None:
    bright: np.ndarray = (gradient.astype(np.int64) * factor).astype(dtype)
    Image.fromarray(bright).save(tmp_path / "x.tif")
    seen = read_image(tmp_path / "x.tif")
    assert np.abs(seen[..., 1].astype(int) - gradient).max() <= 1
    assert (seen[..., 0] == seen[..., 2]).all()


def test_fractions_are_shares_of_white(gradient: np.ndarray, tmp_path: Path) -> None:
    fractions = (gradient / 255).astype(np.float32)
    fractions[0, 0] = np.nan
    Image.fromarray(fractions).save(tmp_path / "x.tif")
    assert (read_image(tmp_path / "x.tif")[1:, :, 0] == gradient[1:]).all()


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "RGB"])
def test_every_mode_becomes_rgb(mode: str, gradient: np.ndarray, tmp_path: Path) -> None:
    picture = Image.fromarray(np.stack([gradient] * 3, axis=-1)).convert(mode)
    picture.save(tmp_path / "x.tif")
    seen = read_image(tmp_path / "x.tif")
    assert seen.shape == (32, 64, 3)
    assert seen.dtype == np.uint8
    expected = np.where(gradient > 127, 255, 0).mean() if mode == "1" else gradient.mean()
    assert abs(seen.mean() - expected) < 3


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    picture = Image.new("RGBA", (4, 2), (0, 0, 0, 0))
    picture.putpixel((1, 1), (10, 20, 30, 255))
    picture.save(tmp_path / "x.png")
    seen = read_image(tmp_path / "x.png")
    assert (seen[0] == 255).all()
    assert seen[1, 1].tolist() == [10, 20, 30]


def test_a_turned_photo_is_upright(tmp_path: Path) -> None:
    upright = np.zeros((20, 40, 3), np.uint8)
    upright[:5, :5] = 255
    orientation = Image.Exif()
    orientation[0x0112] = 6
    Image.fromarray(np.rot90(upright)).save(tmp_path / "x.png", exif=orientation)
    assert (read_image(tmp_path / "x.png") == upright).all()


def test_an_image_beyond_pillows_limit_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (64, 64)).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert read_image(tmp_path / "x.png").shape == (64, 64, 3)
    assert Image.MAX_IMAGE_PIXELS == 100
    monkeypatch.setattr("incseg.images.LARGEST", 1000)
    with pytest.raises(InputError, match="64×64"):
        read_image(tmp_path / "x.png")


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    whole = tmp_path / "whole.jpg"
    Image.effect_noise((64, 64), 50).save(whole)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:800])
    for name, message in [("text.png", "not an image"), ("cut.jpg", "is it complete"), ("none.png", "is missing")]:
        with pytest.raises(InputError, match=message):
            read_image(tmp_path / name)
    with pytest.raises(InputError, match=r"not \(4, 4\) float64"):
        read_image(np.zeros((4, 4)))  # type: ignore[arg-type]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("x.jpg", "x.png", "y.JPG", "notes.txt", "a/x.jpg", "a/[1].png", "out/x.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path / "photos"


def names(found: list[ImageFile]) -> list[str]:
    return [file.name for file in found]


def test_a_folder_means_everything_below_it_but_the_outputs(photos: Path) -> None:
    assert names(find_images([photos], leave_out=photos / "out")) == ["a/[1]", "a/x", "x_jpg", "x_png", "y"]


def test_patterns_are_expanded_also_where_the_shell_does_not(photos: Path) -> None:
    assert names(find_images([f"{photos}/**/*.jpg"])) == ["a/x", "x"]
    assert names(find_images([f"{photos}/a*"])) == ["a/[1]", "a/x"]
    assert names(find_images([photos / "a" / "[1].png"])) == ["[1]"]  # a file that looks like a pattern is a file


def test_no_file_is_taken_twice_and_no_two_share_a_name(photos: Path) -> None:
    assert names(find_images([photos / "x.jpg", f"{photos}/a/../x.jpg"])) == ["x"]
    assert names(find_images([photos / "x.jpg", photos / "a" / "x.jpg"])) == ["x_jpg", "x_jpg-2"]


def test_many_images_are_named_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing every name with every other would take four million comparisons."""
    paths = [Path(f"{i}.png") for i in range(1000)] + [Path("x.jpg")] * 500 + [Path("x.png")] * 500
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def as_posix(path: Path) -> str:
        return Counted(path)

    monkeypatch.setattr(Path, "as_posix", as_posix)
    found = images._distinct_names(paths)
    assert len(set(found)) == len(paths)
    assert found[:2] == ["0", "1"]
    assert found[1000:1003] == ["x_jpg", "x_jpg-2", "x_jpg-3"]
    assert found[-1] == "x_png-500"
    assert compared < 10 * len(paths)


def test_a_number_that_a_file_already_has_is_skipped(tmp_path: Path) -> None:
    for name in ("a/x.png", "b/x.png", "x_png-2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    given = [tmp_path / "x_png-2.png", tmp_path / "a/x.png", tmp_path / "b/x.png"]
    assert names(find_images(given)) == ["x_png-2", "x_png", "x_png-3"]


def test_what_matches_nothing_is_named(photos: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\*' matches no image"):
        find_images([photos, f"{photos}/nothing*"])
