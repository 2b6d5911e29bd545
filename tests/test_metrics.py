import math

import pytest
import torch

from incseg.metrics import (
    CONVENTIONS,
    confusion_matrix,
    domain_scores,
    forgetting,
    harmonic_mean,
    intersection_over_union,
    mean,
    per_class_rates,
    step_scores,
)
from incseg.protocol import steps

LABELS = torch.tensor([[0, 0, 1, 1], [2, 2, 255, 1]])
PREDICTIONS = torch.tensor([[0, 1, 1, 1], [2, 0, 2, 0]])


def test_confusion_counts_pixels_and_leaves_out_the_ignored() -> None:
    matrix = confusion_matrix(LABELS, PREDICTIONS, 4)
    assert matrix.tolist() == [[1, 1, 0, 0], [1, 2, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_confusions_of_parts_add_up_to_the_whole() -> None:
    parts = [confusion_matrix(labels, predicted, 4) for labels, predicted in zip(LABELS, PREDICTIONS, strict=True)]
    assert torch.equal(sum(parts[1:], parts[0]), confusion_matrix(LABELS, PREDICTIONS, 4))


def test_iou_by_hand_with_an_absent_class_as_nan() -> None:
    iou = intersection_over_union(confusion_matrix(LABELS, PREDICTIONS, 4))
    assert iou[:3] == pytest.approx([1 / 4, 2 / 4, 1 / 2])
    assert math.isnan(iou[3])


def test_scores_of_groups_with_and_without_background() -> None:
    step = steps("2-2", 4)[1]
    scores = step_scores([0.9, 0.5, 0.7, 0.2, math.nan], step)
    assert scores["old"] == pytest.approx(0.6)
    assert scores["new"] == pytest.approx(0.2)  # the absent class is left out, not counted as zero
    assert scores["all"] == pytest.approx((0.5 + 0.7 + 0.2) / 3)
    assert scores["old_with_background"] == pytest.approx(0.7)
    assert scores["all_with_background"] == pytest.approx((0.9 + 0.5 + 0.7 + 0.2) / 4)
    assert scores["harmonic"] == pytest.approx(2 * 0.6 * 0.2 / 0.8)


def test_harmonic_is_of_the_classes_of_step_0_and_all_later_ones() -> None:
    last = steps("2-1", 4)[2]  # old: 1, 2, 3; new: 4; but base: 1, 2 and later: 3, 4
    scores = step_scores([0.9, 0.5, 0.7, 0.4, 0.2], last)
    assert scores["harmonic"] == pytest.approx(2 * 0.6 * 0.3 / 0.9)


def test_a_group_with_a_class_that_nobody_labels_has_no_mean() -> None:
    step = steps("2-2", 4)[1]
    scores = step_scores([math.nan, math.nan, 0.7, 0.2, 0.4], step, unlabelled=[0, 1])
    assert scores.pop("new") == pytest.approx(0.3)
    assert all(math.isnan(score) for score in scores.values())
    scores = step_scores([math.nan, 0.5, 0.7, 0.2, 0.4], step, unlabelled=[0])
    assert scores["all"] == pytest.approx(0.45)
    assert math.isnan(scores["all_with_background"])


# Counts of five classes, background first; class 4 appears nowhere. By hand: IoU = TP / (row + column - TP).
CONFUSION = torch.tensor([[50, 5, 0, 5, 0], [10, 30, 0, 0, 0], [0, 0, 20, 20, 0], [5, 0, 0, 15, 0], [0, 0, 0, 0, 0]])
IOU = [50 / 75, 30 / 45, 20 / 40, 15 / 45]


@pytest.mark.parametrize(
    ("name", "base", "later", "everything"),
    [
        ("ucd", (IOU[1] + IOU[2]) / 2, IOU[3], (IOU[1] + IOU[2] + IOU[3]) / 3),
        ("plop", (IOU[0] + IOU[1] + IOU[2]) / 3, IOU[3], sum(IOU) / 4),
        ("dkd", (IOU[0] + IOU[1] + IOU[2]) / 3, (IOU[3] + 0) / 2, (sum(IOU) + 0) / 5),
    ],
)
def test_the_groups_of_the_literature_by_hand(name: str, base: float, later: float, everything: float) -> None:
    scores = CONVENTIONS[name].scores(intersection_over_union(CONFUSION), base=2)
    expected = {"base": base, "later": later, "all": everything, "harmonic": 2 * base * later / (base + later)}
    assert scores == pytest.approx(expected, abs=1e-15)


def test_step_zero_has_no_old_classes() -> None:
    scores = step_scores([0.9, 0.5, 0.7], steps("2-2", 4)[0])
    assert math.isnan(scores["old"])
    assert math.isnan(scores["harmonic"])
    assert scores["new"] == pytest.approx(0.6)


def test_forgetting_is_measured_from_the_best_earlier_step() -> None:
    lost = forgetting([[0.9, 0.8], [0.9, 0.85, 0.5], [0.8, 0.6, 0.7, 0.4]])
    assert lost[1:3] == pytest.approx([0.25, -0.2])
    assert math.isnan(lost[3])


def test_means_of_nothing_are_nan_and_harmonic_mean_of_zeros_is_zero() -> None:
    assert math.isnan(mean([math.nan]))
    assert harmonic_mean(0.0, 0.0) == 0.0


def test_background_that_was_not_scored_has_no_iou() -> None:
    """Row 0 is empty; that background was predicted on six pixels counts against the classes, not as an IoU of 0."""
    iou = intersection_over_union(torch.tensor([[0, 0, 0], [4, 4, 0], [2, 0, 6]]))
    assert math.isnan(iou[0])
    assert iou[1:] == [4 / 8, 6 / 8]


def test_share_recall_and_precision_are_what_their_names_say() -> None:
    counts = torch.tensor([[6, 2, 0], [1, 3, 0], [0, 0, 0]])
    background, seen, nowhere = per_class_rates(counts)
    assert background == pytest.approx((8 / 12, 6 / 8, 6 / 7))
    assert seen == pytest.approx((4 / 12, 3 / 4, 3 / 5))
    assert nowhere[0] == 0
    assert math.isnan(nowhere[1])
    assert math.isnan(nowhere[2])
    assert all(math.isnan(rate) for rates in per_class_rates(torch.zeros(2, 2, dtype=torch.int64)) for rate in rates)


def test_scores_by_domain_add_counts_before_they_divide() -> None:
    groups = torch.tensor([[[0, 0], [1, 3]], [[0, 0], [4, 4]], [[0, 0], [0, 8]]])
    scores = domain_scores(groups)
    assert scores == pytest.approx({"old": 7 / 12, "new": 1, "first": 3 / 4, "later": 12 / 16, "harmonic": 3 / 4})
    assert math.isnan(domain_scores(groups[:1])["old"])
    assert domain_scores(groups[:1])["new"] == 3 / 4


def test_background_that_was_not_scored_counts_nowhere() -> None:
    iou = [math.nan, 0.5, math.nan, 0.7]
    found = {name: convention.scores(iou, base=2)["all"] for name, convention in CONVENTIONS.items()}
    assert found == pytest.approx({"ucd": 0.6, "plop": 0.6, "dkd": 0.4})
