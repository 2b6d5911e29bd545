from pathlib import Path
from typing import Literal

import pytest

from incseg.config import DataConfig
from incseg.curriculum.rules import (
    images_per_step,
    sampling_weights,
    scored_images,
    scoring_table,
    training_images,
    training_table,
)
from incseg.protocol import Protocol, Setting, steps

# Six images over four foreground classes; background (0) is always shown.
PRESENCE = [frozenset(ids) for ids in ([0, 1], [0, 2, 3], [0, 3], [0, 1, 4], [0], [0, 3, 4])]
NATURAL = (0, 1, 2, 3, 4)
DEFAULTS = DataConfig()
Void = Literal["ignore", "background"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (Setting.OVERLAPPED, [[0, 1, 3], [1, 2, 5], [3, 5]]),
        (Setting.DISJOINT, [[0], [1, 2], [3, 5]]),
        (Setting.SEQUENTIAL, [[0], [1, 2], [3, 5]]),
    ],
)
def test_which_images_a_step_sees(setting: Setting, expected: list[list[int]]) -> None:
    found = [training_images(PRESENCE, step, setting, NATURAL) for step in steps("2-1", 4)]
    assert found == expected


def test_a_class_order_changes_which_images_come_when() -> None:
    order = (0, 4, 3, 2, 1)
    first, second = steps("2-2", 4)
    assert training_images(PRESENCE, first, Setting.OVERLAPPED, order) == [1, 2, 3, 5]
    assert training_images(PRESENCE, second, Setting.OVERLAPPED, order) == [0, 1, 3]


def test_a_balanced_partition_by_hand() -> None:
    """Images 0 and 3, where by the plain rule nobody would see them, go where their classes need them most."""
    presence = [frozenset(ids) for ids in ([0, 1, 3], [0, 1], [2, 3], [3, 4], [0], [1, 4])]
    two = steps("2-2", 4)
    # Classes 1 to 4 are shown by 3, 1, 3 and 2 images. Images come up as 0, 1, 5 (class 1), 2 (class 2), 3 (class 3).
    # 0: class 1 scores 120 + 6/3, class 3 the same: the lower id, step 0.   1: step 0.
    # 5: class 1 scores 120 (1 - 2/3) + 5/3, class 4 120 + 5/2: step 1.
    # 2: class 2 scores 120 + 4, class 3 120 + 4/3: step 0.
    # 3: class 3 scores 120 + 5/3, class 4 120 (1 - 1/2) + 5/2: step 1.
    for setting in (Setting.DISJOINT, Setting.SEQUENTIAL):
        assert images_per_step(presence, two, setting, NATURAL, "balanced") == [[0, 1, 2], [3, 5]]
    assert images_per_step(presence, two, Setting.DISJOINT, NATURAL, "plain") == [[1], [0, 2, 3, 5]]
    assert images_per_step(presence, two, Setting.OVERLAPPED, NATURAL, "balanced") == [[0, 1, 2, 5], [0, 2, 3, 5]]


def test_a_balanced_partition_counts_for_the_step_that_got_the_image() -> None:
    """In another order of learning, ties and turns still go by the dataset's ids."""
    presence = [frozenset(ids) for ids in ([1, 2], [1, 2], [1, 3])]
    order = (0, 3, 2, 1)
    # Classes 1, 2, 3 are shown by 3, 2, 1 images; class 3 comes first.
    # 0: class 1 scores 120 + 5/3, class 2 120 + 5/2: step 1.   1: 120 + 5/3 against 120/2 + 5/2: step 2.
    # 2: class 1 scores 120 (1 - 1/3) + 4/3, class 3 120 + 4: step 0.
    assert images_per_step(presence, steps("1-1", 3), Setting.DISJOINT, order, "balanced") == [[2], [0], [1]]


def test_a_random_partition_gives_every_image_to_the_step_of_a_class_it_shows() -> None:
    presence = [frozenset({0, 1 + index % 4, 1 + index // 4 % 4}) for index in range(400)] + [frozenset({0, 255})]
    one_by_one = images_per_step(presence, steps("1-1", 4), Setting.PARTITIONED, NATURAL)
    assert sorted(index for indices in one_by_one for index in indices) == list(range(400))
    assert all(1 + step in presence[index] for step, indices in enumerate(one_by_one) for index in indices)
    assert all(75 <= len(indices) <= 125 for indices in one_by_one)  # by chance, neither the first nor the rarest
    backwards = (0, 4, 3, 2, 1)
    in_twos = images_per_step(presence, steps("2-2", 4), Setting.PARTITIONED, backwards)
    assert in_twos == [sorted(one_by_one[2] + one_by_one[3]), sorted(one_by_one[0] + one_by_one[1])]


def test_scored_images_show_a_class_seen_so_far() -> None:
    first, _, last = steps("2-1", 4)
    assert scored_images(PRESENCE, first, NATURAL, DEFAULTS) == [0, 1, 3]
    assert scored_images(PRESENCE, last, NATURAL, DEFAULTS) == [0, 1, 2, 3, 5]
    assert scored_images(PRESENCE, first, NATURAL, DataConfig(score_on="all")) == [0, 1, 2, 3, 4, 5]


def test_only_the_new_classes_are_labelled_in_training() -> None:
    table = training_table(steps("2-1", 4)[1], NATURAL, DEFAULTS)
    assert table[[0, 1, 2, 3, 4, 255]].tolist() == [0, 0, 0, 3, 0, 255]


def test_a_sequential_step_labels_the_old_classes_too() -> None:
    step = Protocol.parse("folder/2-1/sequential").steps(4)[1]
    assert training_table(step, NATURAL, DEFAULTS)[[0, 1, 2, 3, 4, 255]].tolist() == [0, 1, 2, 3, 0, 255]


def test_joint_training_may_keep_the_old_labels() -> None:
    table = training_table(steps("2-1", 4)[1], NATURAL, DEFAULTS, keep_old=True)
    assert table[[0, 1, 2, 3, 4, 255]].tolist() == [0, 1, 2, 3, 0, 255]


def test_void_may_become_background() -> None:
    assert training_table(steps("2-2", 4)[0], NATURAL, DataConfig(void="background"))[255] == 0


def test_labels_are_channels_in_the_order_of_learning() -> None:
    order = (0, 4, 3, 2, 1)
    first, second = steps("2-2", 4)
    assert training_table(first, order, DEFAULTS)[[0, 1, 2, 3, 4]].tolist() == [0, 0, 0, 2, 1]
    assert training_table(second, order, DEFAULTS)[[0, 1, 2, 3, 4]].tolist() == [0, 4, 3, 0, 0]
    assert scoring_table(second, order, DEFAULTS)[[0, 1, 2, 3, 4]].tolist() == [0, 4, 3, 2, 1]


@pytest.mark.parametrize(("future", "expected"), [("background", 0), ("ignore", 255)])
def test_classes_still_to_come_when_scoring(future: str, expected: int) -> None:
    table = scoring_table(steps("2-2", 4)[0], NATURAL, DataConfig.model_validate({"future": future}))
    assert table[[0, 1, 2, 3, 4, 255]].tolist() == [0, 1, 2, expected, expected, 255]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 0, 0, 255]),  # UCD and PLOP
        ({"future": "ignore"}, [0, 1, 2, 255, 255, 255]),  # MiB on VOC
        ({"future": "ignore", "background": "ignore"}, [255, 1, 2, 255, 255, 255]),  # MiB on ADE20K
        ({"future": "ignore", "scored_void": "background"}, [0, 1, 2, 255, 255, 0]),  # UCD on Cityscapes
        ({"background": "ignore"}, [255, 1, 2, 255, 255, 255]),  # classes to come are background, so ignored as well
    ],
)
def test_how_codebases_score(options: dict[str, str], expected: list[int]) -> None:
    table = scoring_table(steps("2-2", 4)[0], NATURAL, DataConfig.model_validate(options))
    assert table[[0, 1, 2, 3, 4, 255]].tolist() == expected


def test_balanced_sampling_shows_every_class_equally_often() -> None:
    shown = [frozenset({1})] * 3 + [frozenset({2})] + [frozenset[int]()]
    assert sampling_weights(shown, DEFAULTS) is None
    weights = sampling_weights(shown, DataConfig(sampling="balanced"))
    assert weights is not None
    assert sum(weights[:3]) == pytest.approx(weights[3])
    assert weights[4] == weights[0]  # nothing to learn there, but it stays among the images


@pytest.mark.parametrize("void", ["ignore", "background"])
def test_data_without_background_has_no_pixel_of_it_but_classes_of_other_steps(void: str) -> None:
    data = DataConfig.model_validate({"has_background": False, "void": void, "scored_void": void})
    first, second = steps("2-2", 4)
    assert training_table(second, NATURAL, data)[[0, 1, 2, 3, 4, 255]].tolist() == [255, 0, 0, 3, 4, 255]
    assert scoring_table(first, NATURAL, data)[[0, 1, 2, 3, 4, 255]].tolist() == [255, 1, 2, 255, 255, 255]
    assert scoring_table(second, NATURAL, data)[[0, 1, 2, 3, 4, 255]].tolist() == [255, 1, 2, 3, 4, 255]


@pytest.mark.parametrize("void", ["ignore", "background"])
def test_with_saliency_maps_a_salient_id_has_the_label_of_the_same_id(void: Void) -> None:
    second = steps("2-2", 4)[1]
    given = DataConfig(void=void)
    plain = training_table(second, NATURAL, given)
    both = training_table(second, NATURAL, given.model_copy(update={"saliency": Path("maps")}))
    for dataset_id in (*range(127), 255):
        assert both[dataset_id] == both[dataset_id ^ 128] == plain[dataset_id]
