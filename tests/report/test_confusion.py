import pytest

from incseg.report.confusion import most_confused, sparse_shares

CLASSES = ["background", "cat", "dog"]
MATRIX = [[90, 10, 0], [0, 0, 0], [150, 49, 1]]


def test_shares_are_of_the_true_class_and_zeros_are_left_out() -> None:
    assert sparse_shares(MATRIX) == [[0, 900, 1, 100], [], [0, 750, 1, 245, 2, 5]]


def test_mistakes_come_largest_first_and_the_diagonal_is_none() -> None:
    mistakes = most_confused(MATRIX, CLASSES)
    assert [(m.truth, m.prediction) for m in mistakes] == [("dog", "background"), ("dog", "cat"), ("background", "cat")]
    assert [m.share for m in mistakes] == pytest.approx([0.75, 0.245, 0.1])
    assert len(most_confused(MATRIX, CLASSES, most=1)) == 1
