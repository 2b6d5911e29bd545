import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from incseg import cli
from incseg.config import DataConfig
from incseg.curriculum import ProtocolCurriculum
from incseg.datasets import open_source
from incseg.errors import InputError
from incseg.images import index_image
from incseg.protocol import Protocol
from samples import write_folder

PROTOCOL = "folder/2-2/overlapped"
SHOWN = [[1], [2, 3], [3], [1, 4], [2], [3, 4]]  # the classes of the training images


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write_folder(tmp_path / "data", train=len(SHOWN), val=2, size=32)
    for index, ids in enumerate(SHOWN):
        index_image(np.resize(np.array(ids, np.uint8), (32, 32))).save(root / "masks" / f"{index:03d}.png")
    return root


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    (tmp_path / "lists").mkdir()
    return tmp_path / "lists"


def indices(root: Path, lists: Path | None) -> list[list[int]]:
    found = ProtocolCurriculum(open_source("folder", root), Protocol.parse(PROTOCOL), DataConfig(splits=lists)).indices
    return [list(step) for step in found]


def test_arrays_of_indices_as_published(root: Path, lists: Path) -> None:
    np.save(lists / "train-0.npy", np.array([3, 0, 1]))
    np.save(lists / "train-1.npy", np.array([5, 2], np.int32))
    np.save(lists / "val-0.npy", np.array([0]))  # such lists are shipped too, and not ours to read
    assert indices(root, lists) == [[0, 1, 3], [2, 5]]


def test_text_of_indices_or_names(root: Path, lists: Path) -> None:
    (lists / "train-0.txt").write_text("3\n0\n\n1\n")
    (lists / "train-1.txt").write_text("005\n002\n")
    assert indices(root, lists) == [[0, 1, 3], [2, 5]]


def test_the_rule_gives_what_its_own_file_says(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "below" / "lists.json"
    assert cli.main(["data", "split", PROTOCOL, "--data-root", str(root), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "step 0: 4 images, classes disc, square",
        "step 1: 4 images, classes triangle, cross",
    ]
    written = json.loads(out.read_text())
    assert written["steps"][1] == {
        "step": 1,
        "classes": ["triangle", "cross"],
        "images": ["001", "002", "003", "005"],
        "indices": [1, 2, 3, 5],
    }
    assert indices(root, out) == indices(root, None) == [[0, 1, 3, 4], [1, 2, 3, 5]]


def test_a_class_order_and_lists_from_the_command_line(
    root: Path, lists: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (lists / "train-0.txt").write_text("3\n5\n1\n")
    (lists / "train-1.txt").write_text("0\n1\n")
    arguments = ["data", "split", PROTOCOL, "--data-root", str(root), "--splits", str(lists)]
    assert cli.main([*arguments, "--data.class-order", "cross, triangle, square, disc"]) == 0
    assert "step 0: 3 images, classes cross, triangle" in capsys.readouterr().out


def write(name: str, content: object) -> Callable[[Path], object]:
    if isinstance(content, str):
        return lambda lists: (lists / name).write_text(content)
    return lambda lists: np.save(lists / name, np.array(content))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda lists: (lists / "train-1.npy").unlink(), r"neither train-1\.npy nor train-1\.txt"),
        (write("train-1.npy", [5, 6]), r"train-1\.npy lists the index 6, but the dataset has 6 training images"),
        (write("train-1.npy", [-1]), r"lists the index -1"),
        (write("train-1.npy", [[1, 2]]), r"train-1\.npy must hold whole numbers in one row"),
        (write("train-1.npy", [0.5]), r"must hold whole numbers"),
        (write("train-1.npy", []), r"must hold whole numbers|is empty"),
        (lambda lists: (lists / "train-1.npy").write_text("text"), r"train-1\.npy is not an array"),
        (
            write("train-1.npy", [0, 1, 2, 5]),
            r"train-1\.npy gives step 1 the image 000, which shows none of its classes",
        ),
        (write("train-0.npy", [0]), r"step 0 .* has no training image that shows 'square'"),
    ],
)
def test_lists_that_cannot_be(root: Path, lists: Path, harm: Callable[[Path], object], message: str) -> None:
    np.save(lists / "train-0.npy", np.array([0, 1, 3]))
    np.save(lists / "train-1.npy", np.array([1, 2, 5]))
    harm(lists)
    with pytest.raises(InputError, match=message):
        indices(root, lists)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("001\n00x\n", r"train-1\.txt lists '00x', .* Did you mean"), ("7\n", "lists the index 7")],
)
def test_text_that_cannot_be(root: Path, lists: Path, text: str, message: str) -> None:
    (lists / "train-0.txt").write_text("0\n1\n")
    (lists / "train-1.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        indices(root, lists)


def test_other_paths_that_cannot_be(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere is neither a folder of lists"):
        indices(root, tmp_path / "nowhere")
    for text in ("{}", "[]", "null", '{"steps": [{"images": ["001"]}]}'):
        (tmp_path / "lists.json").write_text(text)
        with pytest.raises(InputError, match="is not a file of lists"):
            indices(root, tmp_path / "lists.json")


@pytest.mark.parametrize(
    ("made_for", "message"),
    [
        (["folder/2-1/overlapped"], "has the lists of folder/2-1/overlapped, not of folder/2-2/overlapped"),
        (["folder/2-2/disjoint"], "has the lists of folder/2-2/disjoint, not of folder/2-2/overlapped"),
        (
            [PROTOCOL, "--data.class-order", "square,disc,cross,triangle"],
            "another order of learning: its step 0 learns square, disc, here it is disc, square; give the --data.class",
        ),
    ],
)
def test_a_file_made_for_something_else_is_refused(
    root: Path, tmp_path: Path, made_for: list[str], message: str
) -> None:
    out = tmp_path / "lists.json"
    assert cli.main(["data", "split", *made_for, "--data-root", str(root), "--out", str(out)]) == 0
    with pytest.raises(InputError, match=message):
        indices(root, out)


def test_one_tiny_object_lost_in_a_smaller_copy_is_forgiven(tmp_path: Path, lists: Path) -> None:
    root = write_folder(tmp_path / "many", train=200, val=2, size=32)
    for index in range(200):
        ids = [index % 2 + 1] if index < 100 else [index % 2 + 3]
        index_image(np.resize(np.array(ids, np.uint8), (32, 32))).save(root / "masks" / f"{index:03d}.png")
    np.save(lists / "train-0.npy", np.array([*range(100), 150]))
    np.save(lists / "train-1.npy", np.arange(100, 200))
    assert indices(root, lists)[0][-1] == 150
