from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from incseg import cli
from incseg.config import load_recipe
from incseg.curriculum import Curriculum, build_curriculum
from incseg.datasets import dataset_entry, open_source
from incseg.datasets.cityscapes import LABEL_IDS
from incseg.datasets.scan import class_presence
from incseg.errors import InputError
from incseg.images import index_image
from incseg.protocol import Protocol
from samples import write_cityscapes

ROAD, WALL, SKY, CAR, TRUCK, BUS, TRAIN, MOTORCYCLE, BICYCLE = 7, 12, 23, 26, 27, 28, 31, 32, 33
FIRST = [LABEL_IDS[name] for name in list(LABEL_IDS)[:13]]
VOID = [0, 1, 4, 9, 10, 14, 15, 16, 18, 29, 30]
TRAIN_SCENES = {
    "ulm_0_2": [CAR, TRUCK, BUS, TRAIN, MOTORCYCLE, BICYCLE],
    "aachen_0_1": FIRST,
    "aachen_0_0": [ROAD, CAR, 0],
    "ulm_0_10": [ROAD, BICYCLE, 10],
    "bremen_0_0": VOID,
}
VAL_SCENES = {"frankfurt_0_1": [ROAD, CAR, 4, SKY], "frankfurt_0_0": [CAR, BUS]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_cityscapes(tmp_path / "city", TRAIN_SCENES, VAL_SCENES)


def curriculum(root: Path, protocol: str, **data: str) -> Curriculum:
    config = load_recipe(protocol, {"method": "ft", "data": {"root": root, **data}})
    return build_curriculum(Protocol.parse(config.protocol), config.data)


def test_files_come_by_city_and_name_and_label_ids_become_train_ids_plus_one(root: Path) -> None:
    source = open_source("cityscapes", root)
    assert list(source.train.ids) == ["aachen_0_0", "aachen_0_1", "bremen_0_0", "ulm_0_10", "ulm_0_2"]
    assert list(source.val.ids) == ["frankfurt_0_0", "frankfurt_0_1"]
    assert source.classes[14:] == ("car", "truck", "bus", "train", "motorcycle", "bicycle")
    assert source.train.mask(0)[0].tolist() == [1, 1, 14, 14, 255, 255]
    assert source.train.mask(1)[0, ::2].tolist() == list(range(1, 14))
    assert source.train.mask(2).unique().tolist() == [255]
    assert source.train.mask(4)[0, ::2].tolist() == list(range(14, 20))
    presence = class_presence(source.train, source.classes)
    assert presence == [{1, 14}, set(range(1, 14)), set(), {1, 19}, set(range(14, 20))]


def test_the_images_of_every_step_by_hand(root: Path) -> None:
    assert curriculum(root, "cityscapes/13-6/overlapped").indices == [[0, 1, 3], [0, 3, 4]]
    one_by_one = curriculum(root, "cityscapes/13-1/overlapped")
    assert one_by_one.indices == [[0, 1, 3], [0, 4], [4], [4], [4], [4], [3, 4]]
    assert [one_by_one.classes[step.new[-1]] for step in one_by_one.steps][1:3] == ["car", "truck"]
    # Disjoint, every image goes to one step. Of those with a road (3 images) 0 comes first: road scores 120 + 5/3, car
    # (2 images) 120 + 5/2, so step 1. 1: a class of its own scores 120 + 15, step 0. 3: bicycle (2 images), step 1.
    assert curriculum(root, "cityscapes/13-6/disjoint").indices == [[1], [0, 3, 4]]


def test_labels_as_in_ucd_and_as_in_cityscapes(root: Path) -> None:
    def labels(**data: str) -> tuple[list[int], list[int]]:
        plan = curriculum(root, "cityscapes/13-6/overlapped", scoring="full", **data)
        learnt = plan.training_images(plan.steps[1], 32).table[plan.source.train.mask(0).long()]
        scored = plan.scored_images(plan.steps[0])[0][0].labels
        return learnt[0, ::2].tolist(), scored[0, ::2].tolist()

    assert labels() == ([0, 14, 0], [1, 255, 0, 11])  # void is background; cars, still to come, are not scored
    assert labels(void="ignore", scored_void="ignore") == ([0, 14, 255], [1, 255, 255, 11])
    assert labels(future="background") == ([0, 14, 0], [1, 0, 0, 11])


@pytest.mark.parametrize("folders", [("Cityscapes", "Cityscapes"), ("leftImg8bit_trainvaltest", "gtFine_trainvaltest")])
def test_the_parts_may_lie_one_folder_below(tmp_path: Path, folders: tuple[str, str]) -> None:
    made = write_cityscapes(tmp_path / "made", TRAIN_SCENES, VAL_SCENES)
    for part, folder in zip(("leftImg8bit", "gtFine"), folders, strict=True):
        (tmp_path / "root" / folder).mkdir(parents=True, exist_ok=True)
        (made / part).rename(tmp_path / "root" / folder / part)
    assert len(open_source("cityscapes", tmp_path / "root").train) == 5


def test_the_archive_of_further_images_may_lie_beside_the_others(tmp_path: Path) -> None:
    made = write_cityscapes(tmp_path / "made", TRAIN_SCENES, VAL_SCENES)
    for part in ("leftImg8bit", "gtFine"):
        (tmp_path / "root" / f"{part}_trainvaltest").mkdir(parents=True)
        (made / part).rename(tmp_path / "root" / f"{part}_trainvaltest" / part)
    (tmp_path / "root/leftImg8bit_trainextra/leftImg8bit/train_extra").mkdir(parents=True)  # comes first by name
    assert len(open_source("cityscapes", tmp_path / "root").train) == 5


def test_other_counts_than_the_published_are_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "split", "cityscapes/13-6", "--data-root", str(root)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "cityscapes: 5 of the published 2975 training images and 2 of the 500 validation images are here; "
        "is the archive fully unpacked?",
        "images per step: 3 (published: 2975), 3 (published: 2936); are all images and masks here, and in their "
        "original size?",
    ]
    complete = replace(dataset_entry("cityscapes"), published_images=(5, 2))
    assert complete.shortfall(open_source("cityscapes", root)) == ""
    assert dataset_entry("shapes").shortfall(open_source("shapes", None)) == ""


def test_what_is_wrong_with_a_tree_is_said_with_the_files_name(root: Path) -> None:
    (root / "leftImg8bit/train/ulm/ulm_0_2_leftImg8bit.png").unlink()
    with pytest.raises(InputError, match=r"ulm_0_2_leftImg8bit\.png is missing: is the archive"):
        open_source("cityscapes", root)
    (root / "gtFine/val/frankfurt/frankfurt_0_0_gtFine_labelIds.png").unlink()
    with pytest.raises(InputError, match=r"ulm_0_2_leftImg8bit\.png is missing \(and 1 more\)"):
        open_source("cityscapes", root)
    (root / "gtFine/val").rename(root / "gtFine/test")
    with pytest.raises(InputError, match=r"gtFine/val is missing"):
        open_source("cityscapes", root)
    with pytest.raises(InputError, match=r"does not look like Cityscapes: there is no leftImg8bit/"):
        open_source("cityscapes", root / "gtFine")


def test_an_id_that_cityscapes_does_not_have_is_named(tmp_path: Path) -> None:
    root = write_cityscapes(tmp_path, {"ulm_0_0": [ROAD, 34]}, {"ulm_0_1": [ROAD]})
    source = open_source("cityscapes", root)
    with pytest.raises(InputError, match=r"ulm_0_0_gtFine_labelIds\.png holds the id 34"):
        class_presence(source.train, source.classes)


def test_empty_folders_are_named(tmp_path: Path) -> None:
    for part in ("leftImg8bit", "gtFine"):
        (tmp_path / part / "train").mkdir(parents=True)
    with pytest.raises(InputError, match="hold no image and no mask"):
        open_source("cityscapes", tmp_path)


def test_the_table_has_every_class_once() -> None:
    source_ids = torch.tensor([LABEL_IDS[name] for name in LABEL_IDS])
    assert len(set(source_ids.tolist())) == 19
    assert not set(source_ids.tolist()) & set(VOID)


def test_masks_of_train_ids_are_read_where_there_are_no_others(tmp_path: Path) -> None:
    root = write_cityscapes(tmp_path, TRAIN_SCENES, VAL_SCENES)
    train_ids = {label: index for index, label in enumerate(LABEL_IDS.values())}
    by_label = [open_source("cityscapes", root).train.mask(index) for index in range(5)]
    for path in sorted(root.rglob("*_labelIds.png")):
        mask = np.asarray(Image.open(path))
        renumbered = np.vectorize(lambda label: train_ids.get(label, 255))(mask).astype(np.uint8)
        index_image(renumbered).save(path.with_name(path.name.replace("labelIds", "labelTrainIds")))
        path.unlink()
    split = open_source("cityscapes", root).train
    assert len(split) == 5
    for index, expected in enumerate(by_label):
        assert torch.equal(split.mask(index), expected)
    index_image(np.full((4, 4), 19, np.uint8)).save(split.files(0)[1])  # no train id: not the class of id 19
    Image.new("RGB", (4, 4)).save(split.files(0)[0])
    with pytest.raises(InputError, match="there are only 20 classes"):
        class_presence(split, open_source("cityscapes", root).classes)
