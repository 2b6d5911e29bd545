from pathlib import Path

import numpy as np
import pytest

from incseg.config import RunConfig, load_recipe
from incseg.data import open_source
from incseg.data.ade20k import CLASSES, ORDERS
from incseg.engine.build import build_curriculum
from incseg.errors import InputError
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


def recipe(root: Path, protocol: str, **data: str) -> RunConfig:
    return load_recipe(protocol, {"method": "ft", "data": {"root": root, **data}})


def test_there_are_150_classes_with_names_of_their_own_and_every_order_has_them_all() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 151
    assert {CLASSES[1], CLASSES[100], CLASSES[150]} == {"wall", "buffet", "flag"}
    for order in ORDERS.values():
        assert sorted(order) == list(range(151))
        assert order[0] == 0


def test_order_b_learns_what_mib_says() -> None:
    """Facts of the published tasks 100-50b and 100-10b: the classes of the first later step, and some of each."""
    order = ORDERS["b"]
    assert set(order[101:111]) == {11, 16, 50, 64, 66, 73, 89, 92, 145, 146}
    assert set(order[141:]) == {17, 20, 59, 68, 83, 94, 102, 122, 127, 137}
    assert {2, 4, 7, 146} <= set(order[101:])
    assert {1, 9, 144} <= set(order[:51])
    assert {3, 5, 150} <= set(order[51:101])


@pytest.mark.parametrize("above", [False, True])
def test_files_come_by_name_with_their_ids(root: Path, above: bool) -> None:
    source = open_source("ade20k", root.parent if above else root)
    assert list(source.train.ids) == [f"ADE_train_0000000{i}" for i in range(1, 6)]
    assert source.train.mask(1)[0].tolist() == [0, 0, 1, 1, 120, 120]
    assert source.val.mask(1)[0].tolist() == [0, 0, 145, 145]


def test_the_images_of_every_step_by_hand(root: Path) -> None:
    assert build_curriculum(recipe(root, "ade20k/100-50/overlapped")).indices == [[0, 1, 2], [0, 1, 3]]
    tens = build_curriculum(recipe(root, "ade20k/100-10/overlapped"))
    assert tens.indices == [[0, 1, 2], [0], [0, 1, 3], [0], [0], [0, 3]]
    assert build_curriculum(recipe(root, "ade20k/50-50/overlapped")).indices == [[0, 1], [0, 2], [0, 1, 3]]
    # Order b: 1 is of the first fifty, 60, 120 and 150 of the second; 145 and 2 are of the last fifty.
    assert build_curriculum(recipe(root, "ade20k/50-50-b/overlapped")).indices == [[0, 1], [0, 1, 2, 3], [0]]


def test_labels_are_channels_in_order_b(root: Path) -> None:
    lessons = build_curriculum(recipe(root, "ade20k/100-10-b/overlapped"))
    channel_of_145 = ORDERS["b"].index(145)
    assert 101 <= channel_of_145 < 111
    table = lessons.training_images(lessons.steps[1], 32).table
    assert table[[0, 1, 145, 146]].tolist() == [0, 0, channel_of_145, channel_of_145 + 1]
    assert lessons.classes[channel_of_145] == CLASSES[145]


def test_scored_as_in_ucd_and_as_in_mib(root: Path) -> None:
    def scored(**data: str) -> list[int]:
        lessons = build_curriculum(recipe(root, "ade20k/100-50/overlapped", **data))
        labels: list[int] = lessons.scored_images(lessons.steps[0])[0][0].labels[0, ::2].tolist()
        return labels

    assert scored() == [0, 1, 60, 0]
    assert scored(future="ignore", background="ignore") == [255, 1, 60, 255]


def test_an_unknown_order_names_the_published_ones(root: Path) -> None:
    with pytest.raises(InputError, match=r"'d', .* nor one of its published orders \(a, b, c\)"):
        build_curriculum(recipe(root, "ade20k/100-50/overlapped", class_order="d"))


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
        build_curriculum(recipe(root, "ade20k/offline"))


def test_one_image_per_step_in_the_disjoint_setting(tmp_path: Path) -> None:
    """Every image in exactly one list, none of background alone; each list is what its classes need most."""
    generator = np.random.default_rng(1)
    scenes = {f"{i:03d}": [0, *sorted(generator.choice(150, 40, replace=False) + 1)] for i in range(60)}
    root = write_ade20k(tmp_path, {**scenes, "060": [0]}, VAL_SCENES)
    lists = build_curriculum(recipe(root, "ade20k/100-50/disjoint")).indices
    assert sorted([*lists[0], *lists[1]]) == list(range(60))
    assert len(lists[0]) > len(lists[1]) > 10
