"""What can hardly be right although every file can be read."""

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command_line import run
from incseg.datasets.check import lies_between
from samples import write_cityscapes, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", train=3, val=1, size=32)


def paint(folder: Path, mask: np.ndarray) -> None:
    for path in (folder / "masks").iterdir():
        Image.fromarray(mask).save(path)


def asked(root: Path, tmp_path: Path, dataset: str = "folder") -> tuple[int, str]:
    """The exit code of ``data check``, and what it said, on one line: a table may be as narrow as a terminal."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = run("data", "check", dataset, "--data-root", root, "--out", tmp_path / "sheet.png")
    return code, " ".join(said.getvalue().split())


def test_pixels_between_a_smaller_and_a_larger_id() -> None:
    mask = np.array([[0, 0, 1, 3, 3], [0, 0, 1, 3, 3], [0, 0, 1, 3, 3]], np.uint8)
    assert np.flatnonzero(lies_between(mask).any(axis=0)).tolist() == [2]


def test_black_and_white_masks_are_a_problem_with_its_remedy(folder: Path, tmp_path: Path) -> None:
    binary = np.zeros((32, 32), np.uint8)
    binary[8:20, 8:20] = 255
    paint(folder, binary)
    (folder / "classes.txt").write_text("background\ncar")
    code, said = asked(folder, tmp_path)
    assert code == 2
    assert (
        "255 is void, which is ignored: there is nothing to learn. If 255 marks 'car' in them, write 'car = 255'"
        in said
    )
    (folder / "classes.txt").write_text("background\ncar = 255")
    code, said = asked(folder, tmp_path)
    assert (code, "void, which" in said) == (0, False)


def test_resized_masks_classes_in_no_image_and_a_missing_background_are_asked_about(
    folder: Path, tmp_path: Path
) -> None:
    mask = np.full((32, 32), 1, np.uint8)
    mask[:, 16:] = 3
    mask[:, 15] = 2
    paint(folder, mask)
    code, said = asked(folder, tmp_path)
    assert code == 0
    assert "'square' (id 2) in most images that show it: It occurs only along borders" in said
    assert "(id 1)" not in said
    assert "no training image shows 'cross'." in said
    assert "no mask holds 0, the id of 'background'" in said
    (folder / "classes.txt").write_text("disc\nsquare\ntriangle\ncross")
    paint(folder, mask - 1)
    assert "'disc', the first line of classes.txt, is taken for the background" in asked(folder, tmp_path)[1]
    (folder / "val.txt").write_text("")
    assert "there is no validation image." in asked(folder, tmp_path)[1]


def test_one_true_object_does_not_hide_interpolation_in_the_other_images(folder: Path, tmp_path: Path) -> None:
    mask = np.full((32, 32), 1, np.uint8)
    mask[:, 16:] = 3
    mask[:, 15] = 2
    paint(folder, mask)
    large = mask.copy()
    large[:, :14] = 2  # more pixels than the lines of all others together
    Image.fromarray(large).save(sorted((folder / "masks").iterdir())[0])
    assert "'square' (id 2) in most images" in asked(folder, tmp_path)[1]


def test_unknown_ids_along_borders_are_explained(folder: Path, tmp_path: Path) -> None:
    mask = np.zeros((32, 32), np.uint8)
    mask[:, 15], mask[:, 16:] = 128, 255
    paint(folder, mask)
    code, said = asked(folder, tmp_path)
    assert code == 2
    assert "holds the id 128" in said
    assert "resized with interpolation" in said


def test_train_ids_in_the_place_of_label_ids_are_recognised(tmp_path: Path) -> None:
    trains = {"ulm_0_0": [0, 2, 8, 11, 13, 18, 255]}
    labels = {"ulm_0_0": [7, 8, 11, 26, 4]}
    for name, scenes, suspicious in (("trains", trains, True), ("labels", labels, False)):
        root = write_cityscapes(tmp_path / name, scenes, {"ulm_0_9": scenes["ulm_0_0"]})
        assert ("hold train ids (0 to 18)" in asked(root, tmp_path, "cityscapes")[1]) == suspicious
