from pathlib import Path

import pytest

from incseg.datasets import open_source
from incseg.datasets.scan import class_presence
from incseg.datasets.voc import CLASSES, ORDERS
from incseg.errors import InputError
from incseg.protocol import class_order, steps


def test_the_layout_is_found_from_above_and_every_class_is_there(voc_tiny: Path) -> None:
    for root in (voc_tiny, voc_tiny / "VOC2012"):
        source = open_source("voc", root)
        assert len(source.classes) == 21
        shown = frozenset().union(*class_presence(source.train, source.classes))
        assert shown == frozenset(range(21))


def make_voc(root: Path, list_name: str, line: str) -> Path:
    for name in ("JPEGImages", "SegmentationClassAug", "ImageSets/Segmentation"):
        (root / name).mkdir(parents=True)
    (root / "JPEGImages" / "a.jpg").touch()
    (root / "SegmentationClassAug" / "a.png").touch()
    for name in (list_name, "val.txt"):
        (root / "ImageSets" / "Segmentation" / name).write_text(line)
    return root


@pytest.mark.parametrize("list_name", ["train_aug.txt", "trainaug.txt"])
@pytest.mark.parametrize("line", ["a\n", "/JPEGImages/a.jpg /SegmentationClassAug/a.png\n"])
def test_both_spellings_of_the_list_and_both_kinds_of_line(tmp_path: Path, list_name: str, line: str) -> None:
    assert list(open_source("voc", make_voc(tmp_path, list_name, line)).train.ids) == ["a"]


def test_a_half_unpacked_archive_is_named(tmp_path: Path) -> None:
    root = make_voc(tmp_path, "train_aug.txt", "a\nb\n")
    with pytest.raises(InputError, match=r"b\.jpg is missing .* fully unpacked"):
        open_source("voc", root)


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    root = make_voc(tmp_path, "train.txt", "a\n")
    with pytest.raises(InputError, match=r"train_aug\.txt or trainaug\.txt"):
        open_source("voc", root)


def test_every_order_of_plop_has_all_classes_and_learns_the_published_ones_last() -> None:
    assert list(ORDERS) == [f"plop-{letter}" for letter in "abcdefghijklmnopqrstuvw"]
    assert len(set(ORDERS.values())) == len(ORDERS)
    assert all(sorted(order) == list(range(21)) and order[0] == 0 for order in ORDERS.values())
    later = {"plop-a": [16, 17, 18, 19, 20], "plop-b": [17, 3, 6, 18, 10], "plop-w": [3, 15, 6, 5, 17]}
    for name, learnt in later.items():
        order = class_order(CLASSES, [name], ORDERS)
        assert [order[channel] for step in steps("15-1", 20)[1:] for channel in step.new] == learnt
