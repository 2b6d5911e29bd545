from dataclasses import replace

import pytest

from incseg.report.page import render
from incseg.report.per_class import forgetting, iou_over_steps, most_confused, sparse_shares
from incseg.results import Run
from sample_runs import NAMES


def test_classes_stand_under_the_step_that_learnt_them(runs: list[Run]) -> None:
    groups = iou_over_steps(runs)
    assert [[row.name for row in group.rows] for group in groups] == [
        [NAMES[0], NAMES[1], NAMES[2]], [NAMES[3], NAMES[4]], ["without background"]
    ]  # fmt: skip
    forgotten, new = groups[0].rows[1].cells[0], groups[1].rows[0].cells[0]
    assert [cell.level for cell in forgotten] == [10, 0]
    assert (new[0].text, new[0].level) == ("", None)


def test_forgetting_is_of_earlier_classes_and_on_average(runs: list[Run]) -> None:
    rows = forgetting(runs)
    assert [name for name, _ in rows] == [NAMES[1], NAMES[2], "mean"]
    ft, mib = rows[0][1]
    assert ft.length == pytest.approx(100 * runs[0].iou(0, NAMES[1]), abs=0.1)
    assert mib.length < 10


CLASSES = ["background", "cat", "dog"]
MATRIX = [[90, 10, 0], [0, 0, 0], [150, 49, 1]]


def test_shares_are_of_the_true_class_and_zeros_are_left_out() -> None:
    assert sparse_shares(MATRIX) == [[0, 900, 1, 100], [], [0, 750, 1, 245, 2, 5]]


def test_mistakes_come_largest_first_and_the_diagonal_is_none() -> None:
    mistakes = most_confused(MATRIX, CLASSES)
    assert [(m.truth, m.prediction) for m in mistakes] == [("dog", "background"), ("dog", "cat"), ("background", "cat")]
    assert [m.share for m in mistakes] == pytest.approx([0.75, 0.245, 0.1])
    assert len(most_confused(MATRIX, CLASSES, most=1)) == 1


def test_what_rounds_to_zero_is_neither_a_loss_nor_a_gain(runs: list[Run]) -> None:
    classes = {NAMES[1]: -0.0004, NAMES[2]: -0.0006}
    run = replace(runs[1], result=runs[1].result | {"forgetting": {"classes": classes, "mean": -0.0}})
    bars = [row[0] for _, row in forgetting([run])]
    assert [(bar.text, bar.length, bar.improved) for bar in bars] == [
        ("0.0", 0.0, False), ("-0.1", 0.1, True), ("0.0", 0.0, False)
    ]  # fmt: skip
    assert "-0.0" not in render([run]), "anywhere on the page"


def test_where_no_earlier_class_was_measured_the_page_says_so(runs: list[Run]) -> None:
    nothing = {"classes": {NAMES[1]: None, NAMES[2]: None}, "mean": None}
    run = replace(runs[1], result=runs[1].result | {"forgetting": nothing})
    assert forgetting([run]) == []
    assert "cannot be told what was forgotten" in render([run])
