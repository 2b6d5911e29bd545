import pytest

from incseg.data.steps import scored_images, scoring_table, training_images, training_table
from incseg.protocol import Setting, steps

# Six images over four foreground classes; background (0) is always shown.
PRESENCE = [frozenset(ids) for ids in ([0, 1], [0, 2, 3], [0, 3], [0, 1, 4], [0], [0, 3, 4])]
NATURAL = (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (Setting.OVERLAPPED, [[0, 1, 3], [1, 2, 5], [3, 5]]),
        (Setting.DISJOINT, [[0], [1, 2], [3, 5]]),
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


def test_scored_images_show_a_class_seen_so_far() -> None:
    first, _, last = steps("2-1", 4)
    assert scored_images(PRESENCE, first, NATURAL) == [0, 1, 3]
    assert scored_images(PRESENCE, last, NATURAL) == [0, 1, 2, 3, 5]


def test_only_the_new_classes_are_labelled_in_training() -> None:
    table = training_table(steps("2-1", 4)[1], NATURAL)
    assert table[[0, 1, 2, 3, 4, 255]].tolist() == [0, 0, 0, 3, 0, 255]


def test_joint_training_may_keep_the_old_labels() -> None:
    table = training_table(steps("2-1", 4)[1], NATURAL, keep_old=True)
    assert table[[0, 1, 2, 3, 4, 255]].tolist() == [0, 1, 2, 3, 0, 255]


def test_void_may_become_background() -> None:
    assert training_table(steps("2-2", 4)[0], NATURAL, void="background")[255] == 0


def test_labels_are_channels_in_the_order_of_learning() -> None:
    order = (0, 4, 3, 2, 1)
    first, second = steps("2-2", 4)
    assert training_table(first, order)[[0, 1, 2, 3, 4]].tolist() == [0, 0, 0, 2, 1]
    assert training_table(second, order)[[0, 1, 2, 3, 4]].tolist() == [0, 4, 3, 0, 0]
    assert scoring_table(second, order)[[0, 1, 2, 3, 4]].tolist() == [0, 4, 3, 2, 1]


@pytest.mark.parametrize(("future", "expected"), [("background", 0), ("ignore", 255)])
def test_classes_still_to_come_when_scoring(future: str, expected: int) -> None:
    table = scoring_table(steps("2-2", 4)[0], NATURAL, future)  # type: ignore[arg-type]  # parametrised literal
    assert table[[0, 1, 2, 3, 4, 255]].tolist() == [0, 1, 2, expected, expected, 255]
