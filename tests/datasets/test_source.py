import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from incseg.config import DataConfig
from incseg.datasets import dataset_names, open_source
from incseg.datasets.scan import class_presence
from incseg.errors import InputError
from incseg.images import read_image
from samples import write_folder


def scan(root: Path) -> None:
    source = open_source("folder", root)
    class_presence(source.train, source.classes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", train=5, val=2, size=32)


def test_datasets_are_found_by_name() -> None:
    assert dataset_names() == ["ade20k", "cityscapes", "folder", "shapes", "voc"]
    with pytest.raises(InputError, match="Did you mean 'voc'"):
        open_source("vocc", None)


def test_images_and_masks_come_as_tensors(folder: Path) -> None:
    source = open_source("folder", folder)
    assert source.classes == ("background", "disc", "square", "triangle", "cross")
    assert (len(source.train), len(source.val)) == (5, 2)
    assert source.train.image(0).shape == (3, 32, 32)
    assert source.train.image(0).dtype == torch.uint8
    assert source.train.mask(0).shape == (32, 32)
    assert set(source.train.mask(0).unique().tolist()) <= {0, 1, 2, 3, 4, 255}


def test_without_lists_a_share_is_for_validation_in_which_every_class_is_seen(folder: Path) -> None:
    (folder / "train.txt").unlink()
    (folder / "val.txt").unlink()
    source = open_source("folder", folder)
    assert sorted([*source.train.ids, *source.val.ids]) == [f"00{index}" for index in range(7)]
    trained, scored = (class_presence(split, source.classes) for split in (source.train, source.val))
    for name in range(1, 5):
        images = sum(name in ids for ids in [*trained, *scored])
        assert any(name in ids for ids in trained) == (images > 0)
        assert any(name in ids for ids in scored) == (images > 1)
    assert list(open_source("folder", folder).val.ids) == list(source.val.ids)
    colour = np.broadcast_to(np.array([128, 0, 0], np.uint8), (32, 32, 3))
    replace_mask(folder / "masks/001.png", colour)  # named by whoever reads it next
    assert len(open_source("folder", folder).val) == 1
    assert len(open_source("folder", folder, DataConfig(validation_share=0.5)).val) == 4


def test_with_one_list_the_other_split_is_the_rest(folder: Path) -> None:
    (folder / "train.txt").unlink()
    assert list(open_source("folder", folder).train.ids) == ["000", "001", "002", "003", "004"]


@pytest.mark.parametrize(
    ("train", "val", "given", "scored"),
    [
        ("000 001 002 003 004", "005 006", True, ["005", "006"]),
        (None, "006", True, ["006"]),
        ("000 001 002 003 004 005", None, True, ["006"]),
        ("000", "", True, []),
        ("000 001 002 003 004 005 006", None, False, [f"00{index}" for index in range(7)]),  # as 'incseg memory' writes
        (None, None, False, [f"00{index}" for index in range(7)]),
    ],
)
def test_it_is_known_whether_validation_images_were_given_or_chosen_by_us(
    folder: Path, train: str | None, val: str | None, given: bool, scored: list[str]
) -> None:
    for name, listed in (("train.txt", train), ("val.txt", val)):
        (folder / name).unlink()
        if listed is not None:
            (folder / name).write_text("\n".join(listed.split()))
    source = open_source("folder", folder)
    assert source.validation.given == given
    assert sorted(name for split in source.to_score() for name in split.ids) == scored


def test_sixteen_bit_masks_are_read(folder: Path) -> None:
    ids = np.full((32, 32), 3, np.uint16)
    Image.fromarray(ids).save(folder / "masks" / "000.png")
    assert open_source("folder", folder).train.mask(0).unique().tolist() == [3]


def replace_mask(path: Path, array: NDArray[np.uint8]) -> None:
    Image.fromarray(array).save(path)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: replace_mask(f / "masks/001.png", np.full((32, 32), 9, np.uint8)), r"001\.png holds the id 9"),
        (lambda f: Image.new("RGB", (32, 32), "red").save(f / "masks/001.png"), r"001\.png holds RGB colours"),
        (lambda f: replace_mask(f / "masks/001.png", np.zeros((16, 32), np.uint8)), r"001\.png is 32×16 but its image"),
        (lambda f: (f / "masks/001.png").write_bytes(b"no image"), r"001\.png cannot be read"),
        (
            lambda f: (f / "masks/001.png").write_bytes((f / "masks/001.png").read_bytes()[:-60]),
            r"the mask .*masks/001\.png cannot be read",
        ),
        (lambda f: (f / "masks/001.png").unlink(), r"001\.png is missing"),
        (lambda f: (f / "images/001.png").unlink(), "'001' is listed"),
        (lambda f: (f / "classes.txt").unlink(), r"classes\.txt is missing: a data folder must hold images/, masks/"),
        (lambda f: shutil.rmtree(f / "masks"), r"masks is missing: a data folder must hold"),
        (lambda f: (f / "classes.txt").write_text("background\n\na\n"), r"line 2 of .*classes\.txt is empty"),
        (
            lambda f: (f / "classes.txt").write_text("background"),
            "the background in its first line and at least one class",
        ),
        (lambda f: (f / "classes.txt").write_text("background\na\na"), "'a' twice"),
        (lambda f: (f / "classes.txt").write_bytes(b"h\xe9n"), "not UTF-8"),
        (lambda f: (f / "val.txt").write_text("001"), r"'001' is in both train\.txt and val\.txt"),
        (lambda f: (f / "images/001.jpg").touch(), r"001\.jpg and 001\.png .* would share one mask"),
        (
            lambda f: (f / "images/001.png").write_bytes((f / "images/001.png").read_bytes()[:-60]),
            r"images/001\.png cannot be read",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_with_the_files_name(folder: Path, harm: object, message: str) -> None:
    assert callable(harm)
    harm(folder)
    with pytest.raises(InputError, match=message):
        scan(folder)


def test_a_photograph_that_broke_off_is_named_before_training(folder: Path) -> None:
    picture = Image.open(folder / "images" / "001.png").convert("RGB")
    (folder / "images" / "001.png").unlink()
    picture.save(folder / "images" / "001.jpg")
    scan(folder)
    (folder / "images" / "001.jpg").write_bytes((folder / "images" / "001.jpg").read_bytes()[:-100])
    with pytest.raises(InputError, match=r"001\.jpg cannot be read .* is it complete"):
        scan(folder)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_what_a_camera_wrote_after_the_image_does_no_harm(folder: Path, suffix: str) -> None:
    picture = Image.open(folder / "images" / "001.png").convert("RGB")
    (folder / "images" / "001.png").unlink()
    path = folder / "images" / f"001.{suffix}"
    picture.save(path)
    whole = read_image(path)
    path.write_bytes(path.read_bytes() + b"\0" * 500)
    scan(folder)
    assert (read_image(path) == whole).all()


def test_more_classes_than_a_mask_can_tell_from_ignored_are_refused(folder: Path) -> None:
    (folder / "classes.txt").write_text("\n".join(f"class {i}" for i in range(256)))
    with pytest.raises(InputError, match="at most 255 with background"):
        open_source("folder", folder)


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs its folder"):
        open_source("folder", None)
    with pytest.raises(InputError, match="is not a folder"):
        open_source("voc", tmp_path / "nowhere")
    with pytest.raises(InputError, match="does not look like VOC"):
        open_source("voc", tmp_path)


def test_truncated_images_are_named(folder: Path) -> None:
    path = folder / "images" / "001.png"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"001\.png cannot be read"):
        open_source("folder", folder).train.image(1)
