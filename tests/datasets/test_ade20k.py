from pathlib import Path

import numpy as np
import pytest

from incseg.config import load_recipe
from incseg.curriculum import Curriculum, build_curriculum
from incseg.datasets import open_source
from incseg.datasets.ade20k import CLASSES, ORDERS
from incseg.errors import InputError
from incseg.protocol import Protocol, steps
from samples import write_ade20k

# Every class is in the first, so that every step has something to learn.
TRAIN_SCENES = {
    "ADE_train_00000001": list(range(151)),
    "ADE_train_00000002": [0, 1, 120],
    "ADE_train_00000004": [120, 150],
    "ADE_train_00000003": [0, 60],
    "ADE_train_00000005": [0],
}
VAL_SCENES = {"ADE_val_00000001": [0, 1, 60, 120], "ADE_val_00000002": [0, 145]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_ade20k(tmp_path / "ADEChallengeData2016", TRAIN_SCENES, VAL_SCENES)


def curriculum(root: Path, protocol: str, **data: str) -> Curriculum:
    config = load_recipe(protocol, {"method": "ft", "data": {"root": root, **data}})
    return build_curriculum(Protocol.parse(config.protocol), config.data)


def test_there_are_150_classes_with_names_of_their_own_and_every_order_has_them_all() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 151
    assert {CLASSES[1], CLASSES[100], CLASSES[150]} == {"wall", "buffet", "flag"}
    for order in ORDERS.values():
        assert sorted(order) == list(range(151))
        assert order[0] == 0


# The sets of MiB's tasks.py. The first step of 100-50 and 100-10 is the first two of 50, its second all five tens.
FIFTIES = {
    "b": [
        {1, 9, 14, 18, 22, 24, 25, 27, 28, 29, 32, 38, 42, 45, 46, 47, 48, 49, 54, 56, 58, 61, 62, 63, 69, 74, 75, 76,
         77, 81, 82, 84, 90, 93, 96, 100, 103, 104, 109, 117, 119, 121, 123, 128, 129, 130, 134, 135, 136, 144},
        {3, 5, 6, 8, 10, 12, 13, 19, 21, 23, 26, 31, 33, 34, 36, 39, 40, 43, 44, 53, 55, 57, 60, 70, 71, 80, 86, 87, 91,
         95, 99, 101, 105, 106, 107, 113, 116, 120, 125, 126, 131, 132, 133, 140, 142, 143, 147, 148, 149, 150},
        {2, 4, 7, 11, 15, 16, 17, 20, 30, 35, 37, 41, 50, 51, 52, 59, 64, 65, 66, 67, 68, 72, 73, 78, 79, 83, 85, 88,
         89, 92, 94, 97, 98, 102, 108, 110, 111, 112, 114, 115, 118, 122, 124, 127, 137, 138, 139, 141, 145, 146},
    ],
    "c": [
        {5, 10, 11, 12, 13, 16, 17, 19, 20, 23, 27, 28, 30, 31, 32, 33, 37, 43, 46, 52, 56, 57, 65, 66, 69, 70, 74, 76,
         77, 79, 82, 83, 86, 87, 105, 109, 110, 111, 119, 128, 129, 132, 133, 134, 138, 142, 143, 144, 146, 147},
        {1, 6, 8, 9, 14, 24, 25, 26, 29, 34, 35, 36, 40, 41, 44, 45, 48, 50, 54, 61, 63, 67, 68, 71, 78, 81, 84, 85, 90,
         94, 95, 96, 97, 98, 99, 102, 106, 112, 114, 115, 118, 120, 121, 123, 124, 126, 135, 136, 139, 149},
        {2, 3, 4, 7, 15, 18, 21, 22, 38, 39, 42, 47, 49, 51, 53, 55, 58, 59, 60, 62, 64, 72, 73, 75, 80, 88, 89, 91, 92,
         93, 100, 101, 103, 104, 107, 108, 113, 116, 117, 122, 125, 127, 130, 131, 137, 140, 141, 145, 148, 150},
    ],
}  # fmt: skip
TENS = {
    "b": [
        {11, 16, 50, 64, 66, 73, 89, 92, 145, 146},
        {30, 37, 51, 52, 72, 85, 98, 114, 115, 138},
        {2, 35, 65, 97, 110, 111, 112, 118, 124, 141},
        {4, 7, 15, 41, 67, 78, 79, 88, 108, 139},
        {17, 20, 59, 68, 83, 94, 102, 122, 127, 137},
    ],
    "c": [
        {3, 4, 7, 18, 39, 64, 73, 101, 113, 137},
        {47, 51, 55, 60, 62, 80, 116, 127, 140, 148},
        {22, 42, 49, 58, 59, 89, 91, 92, 108, 125},
        {2, 38, 53, 100, 104, 117, 130, 131, 141, 145},
        {15, 21, 72, 75, 88, 93, 103, 107, 122, 150},
    ],
}


@pytest.mark.parametrize("order", ["b", "c"])
@pytest.mark.parametrize("task", ["50-50", "100-50", "100-10"])
def test_every_step_of_the_orders_learns_what_mib_says(order: str, task: str) -> None:
    first, second, third = FIFTIES[order]
    later = {"50-50": [second, third], "100-50": [third], "100-10": TENS[order]}[task]
    learnt = [{ORDERS[order][channel] for channel in step.new} for step in steps(task, 150)]
    assert learnt == [first if task == "50-50" else first | second, *later]


@pytest.mark.parametrize("above", [False, True])
def test_files_come_by_name_with_their_ids(root: Path, above: bool) -> None:
    source = open_source("ade20k", root.parent if above else root)
    assert list(source.train.ids) == [f"ADE_train_0000000{i}" for i in range(1, 6)]
    assert source.train.mask(1)[0].tolist() == [0, 0, 1, 1, 120, 120]
    assert source.val.mask(1)[0].tolist() == [0, 0, 145, 145]


def test_the_images_of_every_step_by_hand(root: Path) -> None:
    assert curriculum(root, "ade20k/100-50/overlapped").indices == [[0, 1, 2], [0, 1, 3]]
    tens = curriculum(root, "ade20k/100-10/overlapped")
    assert tens.indices == [[0, 1, 2], [0], [0, 1, 3], [0], [0], [0, 3]]
    assert curriculum(root, "ade20k/50-50/overlapped").indices == [[0, 1], [0, 2], [0, 1, 3]]
    # Order b: 1 is of the first fifty, 60, 120 and 150 of the second; 145 and 2 are of the last fifty.
    assert curriculum(root, "ade20k/50-50-b/overlapped").indices == [[0, 1], [0, 1, 2, 3], [0]]


def test_labels_are_channels_in_order_b(root: Path) -> None:
    plan = curriculum(root, "ade20k/100-10-b/overlapped")
    channel_of_145 = ORDERS["b"].index(145)
    assert 101 <= channel_of_145 < 111
    table = plan.training_images(plan.steps[1], 32).table
    assert table[[0, 1, 145, 146]].tolist() == [0, 0, channel_of_145, channel_of_145 + 1]
    assert plan.classes[channel_of_145] == CLASSES[145]


def test_scored_as_in_ucd_and_as_in_mib(root: Path) -> None:
    def scored(**data: str) -> list[int]:
        plan = curriculum(root, "ade20k/100-50/overlapped", scoring="full", **data)
        labels: list[int] = plan.scored_images(plan.steps[0])[0][0].labels[0, ::2].tolist()
        return labels

    assert scored() == [0, 1, 60, 0]
    assert scored(future="ignore", background="ignore") == [255, 1, 60, 255]


def test_an_unknown_order_names_the_published_ones(root: Path) -> None:
    with pytest.raises(InputError, match=r"'d', .* nor one of its published orders \(a, b, c\)"):
        curriculum(root, "ade20k/100-50/overlapped", class_order="d")


def test_what_is_wrong_with_a_tree_is_said_with_the_files_name(root: Path) -> None:
    (root / "annotations/training/ADE_train_00000003.png").unlink()
    with pytest.raises(InputError, match=r"ADE_train_00000003\.png is missing"):
        open_source("ade20k", root)
    (root / "annotations/validation").rename(root / "annotations/elsewhere")
    with pytest.raises(InputError, match=r"annotations/validation is missing"):
        open_source("ade20k", root)
    with pytest.raises(InputError, match="does not look like ADE20K"):
        open_source("ade20k", root / "annotations")


def test_an_id_beyond_150_is_named(tmp_path: Path) -> None:
    root = write_ade20k(tmp_path, {"a": [0, 151]}, {"b": [1]})
    with pytest.raises(InputError, match=r"a\.png holds the id 151, but there are only 151 classes"):
        curriculum(root, "ade20k/offline")


def test_one_image_per_step_in_the_disjoint_setting(tmp_path: Path) -> None:
    """Every image in exactly one list, none of background alone; each list is what its classes need most."""
    generator = np.random.default_rng(1)
    scenes = {f"{i:03d}": [0, *sorted(generator.choice(150, 40, replace=False) + 1)] for i in range(60)}
    root = write_ade20k(tmp_path, {**scenes, "060": [0]}, VAL_SCENES)
    lists = curriculum(root, "ade20k/100-50/disjoint").indices
    assert sorted([*lists[0], *lists[1]]) == list(range(60))
    assert len(lists[0]) > len(lists[1]) > 10
