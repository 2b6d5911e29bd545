import math
import statistics

import pytest
import torch

from incseg.losses import class_histogram, median_of_histogram, normalised_entropy


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
