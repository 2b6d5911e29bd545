"""What was taken for what: rows of a confusion matrix as shares, and the pairs confused most."""

from collections.abc import Sequence
from dataclasses import dataclass

Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Mistake:
    """Pixels of one class that were taken for another."""

    truth: str
    prediction: str
    share: float
    """Of the true class's pixels."""


def sparse_shares(matrix: Matrix) -> list[list[int]]:
    """Per true class the shares of its pixels in thousandths, as ``[channel, share, channel, share, …]`` without zeros.

    A matrix of 150 classes is nearly empty; so it takes a tenth of the room.
    """
    shares = []
    for row in matrix:
        total = sum(row) or 1
        found = [(channel, round(1000 * count / total)) for channel, count in enumerate(row)]
        shares.append([number for pair in found if pair[1] for number in pair])
    return shares


def most_confused(matrix: Matrix, classes: Sequence[str], most: int = 10) -> list[Mistake]:
    """The largest shares off the diagonal, largest first."""
    mistakes = [
        Mistake(classes[truth], classes[prediction], count / sum(row))
        for truth, row in enumerate(matrix)
        for prediction, count in enumerate(row)
        if count and truth != prediction
    ]
    return sorted(mistakes, key=lambda mistake: -mistake.share)[:most]
