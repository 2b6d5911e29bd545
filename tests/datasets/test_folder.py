"""One's own data in the forms in which people have it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from incseg.datasets import Split, open_source
from incseg.datasets.scan import class_presence
from incseg.errors import InputError
from samples import write_folder

MARK = b"\xef\xbb\xbf"  # what Windows puts before the first letter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", train=3, val=1, size=32)


def ids(split: Split, index: int = 0) -> list[int]:
    return [int(found) for found in split.mask(index).unique()]


def test_a_value_in_classes_txt_makes_black_and_white_masks_usable(folder: Path) -> None:
    (folder / "classes.txt").write_text("background\nred car = 255\n")
    binary = np.zeros((32, 32), np.uint8)
    binary[:4] = 255
    Image.fromarray(binary).save(folder / "masks" / "000.png")
    source = open_source("folder", folder)
    assert source.classes == ("background", "red car")
    assert source.train.mask(0).numpy().tolist() == (binary // 255).tolist()


def test_values_that_classes_txt_does_not_list_are_refused(folder: Path) -> None:
    (folder / "classes.txt").write_text("background\nroad = 60\ncar = 120\n")
    Image.new("L", (32, 32), 60).save(folder / "masks" / "000.png")
    Image.new("L", (32, 32), 1).save(folder / "masks" / "001.png")
    Image.new("L", (32, 32), 255).save(folder / "masks" / "002.png")
    split = open_source("folder", folder).train
    assert ids(split, 0) == [1]
    assert ids(split, 2) == [255], "still void"
    with pytest.raises(InputError, match=r"001\.png holds the value 1, which no line of classes.txt has"):
        split.mask(1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("background\ncar = 300", "gives 'car' the value 300: masks have values from 0 to 255"),
        ("background\ncar = 0", "gives 'background' and 'car' the same value, 0"),
        ("background\ncar = 2\nroad", "gives 'car' and 'road' the same value, 2"),
    ],
)
def test_impossible_values_are_refused(folder: Path, lines: str, message: str) -> None:
    (folder / "classes.txt").write_text(lines)
    with pytest.raises(InputError, match=message):
        open_source("folder", folder)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_grey_masks_in_several_channels_are_ids(folder: Path, mode: str) -> None:
    plain = open_source("folder", folder).train.mask(0)
    Image.fromarray(plain.numpy()).convert(mode).save(folder / "masks" / "000.png")
    assert open_source("folder", folder).train.mask(0).equal(plain)


def test_a_jpeg_is_no_mask_whatever_its_name(folder: Path) -> None:
    (folder / "masks" / "000.png").unlink()
    Image.new("L", (32, 32)).save(folder / "masks" / "000.jpg")
    Image.new("L", (32, 32)).save(folder / "masks" / "001.png", format="JPEG")
    for index, name in enumerate(["000.jpg", "001.png"]):
        with pytest.raises(InputError, match=f"{name} is a JPEG, which changes ids .* as PNG"):
            open_source("folder", folder).train.mask(index)


def test_subfolders_capital_suffixes_and_files_from_windows(folder: Path) -> None:
    expected = open_source("folder", folder).train.mask(0)
    for kind, suffix in (("images", ".PNG"), ("masks", ".PNG")):
        (folder / kind / "day" / "one").mkdir(parents=True)
        for path in sorted((folder / kind).glob("*.png")):
            path.rename(folder / kind / "day" / "one" / f"{path.stem}{suffix}")
        (folder / kind / "day" / "._000.png").write_bytes(b"left by another system")
    for name in ("train.txt", "val.txt"):
        lines = "\r\n".join(f"day/one/{line}" for line in (folder / name).read_text().split())
        (folder / name).write_bytes(MARK + lines.encode())
    (folder / "classes.txt").write_bytes(MARK + (folder / "classes.txt").read_bytes().replace(b"\n", b"\r\n"))
    source = open_source("folder", folder)
    assert source.classes[0] == "background"
    assert list(source.train.ids) == ["day/one/000", "day/one/001", "day/one/002"]
    assert source.train.mask(0).equal(expected)


def test_a_missing_line_for_the_background_is_asked_about(folder: Path) -> None:
    (folder / "classes.txt").write_text("disc\nsquare\ntriangle")
    Image.new("L", (32, 32), 3).save(folder / "masks" / "001.png")
    source = open_source("folder", folder)
    with pytest.raises(InputError, match=r"holds the id \d.* is a line for the background missing before 'disc'\?"):
        class_presence(source.train, source.classes)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("disc\nDisc", "names 'disc' and 'Disc', which are one name in another form"),
        ("caf\u00e9\ncafe\u0301", "which are one name in another form"),
        ("disc\ndisc", "names 'disc' twice"),
        ("di\x1bsc\nsquare", r"class 'di\\x1bsc', with characters that cannot be printed"),
    ],
)
def test_classes_that_a_person_cannot_tell_apart_are_refused(names: str, message: str, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=2, val=1)
    (data / "classes.txt").write_text(f"background\n{names}\ntriangle\ncross\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        open_source("folder", data)


def test_a_folder_in_the_place_of_a_list_is_named(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=2, val=1)
    for name in ("train.txt", "classes.txt"):
        (data / name).unlink()
        (data / name).mkdir()
        with pytest.raises(InputError, match=rf"{name} cannot be read: Is a directory"):
            open_source("folder", data)


def test_lists_with_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=3, val=2)
    before = open_source("folder", data)
    for name in ("classes.txt", "train.txt", "val.txt"):
        (data / name).write_bytes(b"\xef\xbb\xbf" + (data / name).read_bytes().replace(b"\n", b"\r\n"))
    after = open_source("folder", data)
    assert (after.classes, after.train.ids, after.val.ids) == (before.classes, before.train.ids, before.val.ids)


def test_masks_without_an_image_are_told(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=6, val=2)
    assert open_source("folder", root).notes == ()
    for name in ("train.txt", "val.txt"):
        (root / name).unlink()
    for name in ("001", "003", "004", "006"):
        (root / "images" / f"{name}.png").unlink()
    source = open_source("folder", root)
    assert source.notes == ("4 mask(s) in masks/ belong to no image, and are left aside: 001, 003, 004 and others",)
    assert len(source.train) + len(source.val) == 4
