import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from incseg import cli
from incseg.config import DataConfig
from incseg.curriculum import ProtocolCurriculum
from incseg.datasets import open_source
from incseg.datasets.cityscapes import LABEL_IDS
from incseg.errors import InputError
from incseg.images import index_image
from incseg.protocol import Protocol
from samples import write_cityscapes, write_folder

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
        (
            lambda lists: (lists / "train-1.npy").unlink(),
            r"has none of train-1\.npy, train-1\.json, train-1\.txt, overlap_2-2",
        ),
        (write("train-1.npy", [5, 6]), r"train-1\.npy lists the index 6, but the dataset has 6 training images"),
        (write("train-1.npy", [-1]), r"lists the index -1"),
        (write("train-1.npy", [[1, 2]]), r"train-1\.npy must hold whole numbers or names in one row"),
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


NAMES = [["000", "001", "003", "004"], ["001", "002", "003", "005"]]  # by the rule


def as_arrays(lists: Path) -> Path:
    for step, names in enumerate(NAMES):
        np.save(lists / f"train-{step}.npy", np.array(names))
    return lists


def as_dkd_ships_them(lists: Path) -> Path:
    for step, names in enumerate(NAMES):
        lines = [f"/JPEGImages/{name}.jpg /SegmentationClassAug/{name}.png" for name in names]
        np.save(lists / f"overlap_2-2_train_{step:02d}.npy", np.array(lines))
    np.save(lists / "disjoint_2-2_train_01.npy", np.array(["000"]))  # of another setting
    return lists


def as_json_arrays(lists: Path) -> Path:
    (lists / "train-0.json").write_text(json.dumps(NAMES[0]))
    (lists / "train-1.json").write_text(json.dumps([1, 2, 3, 5]))
    return lists


def as_one_json_file(lists: Path) -> Path:
    (lists / "all.json").write_text(json.dumps(NAMES))
    return lists / "all.json"


def as_the_partitioned_setting_is_published(lists: Path) -> Path:
    lines = [[f"/JPEGImages/{name}.jpg /SegmentationClassAug/{name}.png" for name in names] for names in NAMES]
    (lists / "partitioned.npy").write_text(json.dumps({"imgs_per_cls": {}, "imgs_per_task": dict(enumerate(lines))}))
    return lists / "partitioned.npy"


def without_step_0(lists: Path) -> Path:
    np.save(lists / "train-1.npy", np.array([1, 2, 3, 5]))
    return lists


@pytest.mark.parametrize(
    "write",
    [as_arrays, as_dkd_ships_them, as_json_arrays, as_one_json_file, as_the_partitioned_setting_is_published,
     without_step_0],
)  # fmt: skip
def test_lists_of_names_and_lists_without_step_0(root: Path, lists: Path, write: Callable[[Path], Path]) -> None:
    assert indices(root, write(lists)) == [[0, 1, 3, 4], [1, 2, 3, 5]]


def test_step_0_cannot_be_left_out_where_no_rule_gives_it(tmp_path: Path, lists: Path) -> None:
    everything = list(LABEL_IDS.values())
    root = write_cityscapes(tmp_path / "city", {"ulm_0_0": everything, "ulm_0_1": everything}, {"ulm_1_0": everything})
    np.save(lists / "train-1.npy", np.array([0]))
    protocol, source = Protocol.parse("cityscapes/13-6/disjoint"), open_source("cityscapes", root)
    with pytest.raises(InputError, match=r"has none of train-0\.npy, .*disjoint_13-6_train_00\.npy"):
        ProtocolCurriculum(source, protocol, DataConfig(splits=lists))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1], [2, 3], [4]]", "has the lists of 3 steps, and the protocol has 2"),
        ('[["000"], [1, "002"]]', "is not a file of lists"),
        ('[["000"], ["nobody"]]', "lists 'nobody', which is no image of the dataset"),
        ("[[true], [1]]", "is not a file of lists"),
        ('{"imgs_per_task": {"1": ["000"], "2": ["001"]}}', "is not a file of lists"),
        ('{"imgs_per_task": 3}', "is not a file of lists"),
    ],
)
def test_arrays_that_cannot_be(root: Path, lists: Path, text: str, message: str) -> None:
    (lists / "all.json").write_text(text)
    with pytest.raises(InputError, match=message):
        indices(root, lists / "all.json")


def test_lists_are_compared_with_the_rule_in_both_directions(root: Path, lists: Path) -> None:
    """Disjoint, 003 belongs to step 1 only, since it shows a class of it; overlapped it belongs to both."""

    def remarks(setting: str, first: list[int]) -> list[str]:
        np.save(lists / "train-0.npy", np.array(first))
        np.save(lists / "train-1.npy", np.array([1, 2, 3, 5]))
        protocol = Protocol.parse(f"folder/2-2/{setting}")
        return ProtocolCurriculum(open_source("folder", root), protocol, DataConfig(splits=lists)).remarks

    where = lists / "train-0.npy"
    assert remarks("overlapped", [0, 1, 3, 4]) == []
    assert remarks("overlapped", [0, 1]) == [
        f"{where}: 2 of the 4 images that step 0 has by the protocol's rule are missing (003 for example)"
    ]
    assert remarks("disjoint", [0, 4]) == []
    assert remarks("disjoint", [0, 1, 4]) == [
        f"{where}: 1 of the 3 images of step 0 do not belong there by the protocol's rule (001 for example)"
    ]
    where.unlink()
    np.save(lists / "train-1.npy", np.array([1, 2, 3, 5]))
    plan = ProtocolCurriculum(open_source("folder", root), Protocol.parse(PROTOCOL), DataConfig(splits=lists))
    assert plan.remarks == [f"{lists} has no list of step 0: its images are those of the protocol's rule"]
