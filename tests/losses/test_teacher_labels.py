import math
import statistics

import pytest
import torch

import reference
from incseg.losses import (
    class_histogram,
    extended_map,
    median_of_histogram,
    normalised_entropy,
    released_entropy,
    released_median,
)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4), (0,), (1,)])
def test_equals_its_definition_pixel_by_pixel(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    truth = torch.tensor([0, 0, 255, 4, 5])[torch.randint(0, 5, shape, generator=generator)]
    teacher = torch.rand(*shape, 4, dtype=torch.float64, generator=generator).softmax(-1)
    labels, probs = extended_map(truth, teacher, num_classes=6)
    assert labels.dtype == torch.int64
    assert probs.shape == (*shape, 6)
    for y, p, label, row in zip(
        truth.reshape(-1).tolist(), teacher.reshape(-1, 4).tolist(),
        labels.reshape(-1).tolist(), probs.reshape(-1, 6).tolist(), strict=True,
    ):  # fmt: skip
        expected_label, expected_row = reference.extended_pixel(y, p, 6)
        assert label == expected_label
        assert row == pytest.approx(expected_row)


def test_does_not_touch_its_input_and_accepts_byte_labels() -> None:
    truth = torch.tensor([0, 2, 255], dtype=torch.uint8)
    teacher = torch.tensor([[0.2, 0.8]] * 3)
    labels, probs = extended_map(truth, teacher, num_classes=3)
    assert labels.tolist() == [1, 2, 255]
    assert truth.tolist() == [0, 2, 255]
    assert probs.sum(-1).tolist() == pytest.approx([1, 1, 1])


@pytest.mark.parametrize(
    ("truth", "teacher", "classes", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), torch.rand(4, 2), 3, "class axis"),
        (torch.zeros(3, dtype=torch.int64), torch.rand(3, 4), 3, "smaller than"),
    ],
)
def test_refuses_what_does_not_fit(truth: torch.Tensor, teacher: torch.Tensor, classes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extended_map(truth, teacher, num_classes=classes)


def test_entropy_is_0_when_certain_and_1_without_a_clue() -> None:
    probs = torch.tensor([[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]]).T.reshape(1, 4, 3)
    assert normalised_entropy(probs)[0].tolist() == pytest.approx([0, 1, math.log(2) / math.log(4)])


def test_medians_per_class_are_those_of_the_values_to_a_bin() -> None:
    generator = torch.Generator().manual_seed(0)
    values, classes = torch.rand(5001, generator=generator) ** 3, torch.randint(0, 3, (5001,), generator=generator)
    medians = median_of_histogram(class_histogram(values, classes, num_classes=4))
    for c in range(3):
        true = statistics.median(values[classes == c].tolist())
        assert true <= medians[c] <= true + 0.01 + 1e-6
    assert medians[3] == 0


def test_histograms_of_parts_add_up() -> None:
    values, classes = torch.rand(100), torch.randint(0, 3, (100,))
    halves = [class_histogram(values[s], classes[s], num_classes=3) for s in (slice(50), slice(50, None))]
    assert torch.equal(halves[0] + halves[1], class_histogram(values, classes, num_classes=3))
    assert int(class_histogram(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]), num_classes=1).sum()) == 2


HISTOGRAMS = {
    "many certain pixels": {0: 900, 1: 40, 3: 10},
    "a bin further up": {0: 3, 1: 5, 7: 60, 30: 4},
    "looked up one bin too low": {28: 3, 29: 1010, 56: 8},
    "an empty bin fits": {5: 1, 9: 1},
    "none fits, and it is small": {40: 30, 41: 2},
    "none fits, and it is large": dict.fromkeys(range(11), 3000),
    "none fits, and the last bin is not empty": {**dict.fromkeys(range(11), 3000), 99: 2},
    "never predicted": {},
}


@pytest.mark.parametrize("kind", HISTOGRAMS)
def test_the_released_median_sums_indices_and_not_counts(kind: str) -> None:
    counts = [HISTOGRAMS[kind].get(b, 0) for b in range(100)]
    expected = reference.released_median(counts)
    others = [2 * count for count in counts]
    found = released_median(torch.tensor([counts, others])).tolist()
    assert found == pytest.approx([expected, reference.released_median(others)], rel=1e-5, nan_ok=True)


def test_of_these_cases_every_kind_of_result_occurs() -> None:
    found = [reference.released_median([h.get(b, 0) for b in range(100)]) for h in HISTOGRAMS.values()]
    assert {math.inf, -math.inf, 0.0} < set(found)
    assert any(map(math.isnan, found))


def test_the_released_entropy_is_a_mean_over_classes() -> None:
    probs = torch.randn(2, 4, 3, 5, dtype=torch.float64).softmax(1)
    expected = [reference.released_uncertainty(row, 6) for row in probs.movedim(1, -1).flatten(0, 2).tolist()]
    assert released_entropy(probs, num_classes=6).flatten().tolist() == pytest.approx(expected)
