"""Background is found as often after a step as before."""

from collections.abc import Sequence
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from incseg.batch import Batch, Outputs
from incseg.engine.background import background_shift
from incseg.models import Segmenter


class Says(nn.Module):
    """The same scores for every image: background and two others, one cell after another."""

    def __init__(self, scores: Sequence[Sequence[float]]):
        super().__init__()
        self.scores = torch.tensor(scores).T.reshape(1, len(scores[0]), 1, -1)

    def forward(self, images: Tensor) -> Outputs:
        return Outputs(self.scores.expand(len(images), -1, -1, -1), torch.zeros(0), [])


TEACHER = [[2.0, 1.0], [2.0, 1.0], [0.0, 1.0], [0.0, 1.0]]  # background in two of four cells


@pytest.mark.parametrize(
    ("labels", "margins", "shift"),
    [
        ([0, 0, 0, 0], [3.0, 1.0, 5.0, 4.0], 3.0),  # two of four again: margins 1 and 3 must fall to 0
        ([0, 0, 1, 1], [3.0, 1.0, 0.5, 0.5], 3.0),  # what is labelled as something else does not count
        ([0, 0, 0, 0], [-1.0, -2.0, -3.0, 4.0], 0.0),  # more than before: left as it is
        ([1, 1, 255, 1], [3.0, 1.0, 5.0, 4.0], 0.0),  # nothing to go by
    ],
)
def test_the_shift_brings_back_the_teachers_share(labels: list[int], margins: list[float], shift: float) -> None:
    student = Says([[0.0, margin, margin - 1] for margin in margins]).train()
    batch = Batch(torch.zeros(2, 3, 1, 4), torch.tensor(labels).reshape(1, 1, 4).repeat(2, 1, 1))
    found = background_shift(cast(Segmenter, student), cast(Segmenter, Says(TEACHER)), [batch])
    assert found == shift
    assert student.training
