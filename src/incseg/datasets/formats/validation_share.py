"""Which images are kept for validation where nothing says so: chosen by the classes they show."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

SEED = 0  # the choice is the same every time


def choose_validation(presence: Sequence[frozenset[int]], share: float) -> set[int]:
    """About ``share`` of the images, and of the images of each class, by index; ``presence[i]`` are classes of image i.

    The rarest class comes first. A class with two images or more is in both parts, wherever that is possible: an image
    is never taken that is the last one to learn a class from.
    """
    left = Counter(name for shown in presence for name in shown)
    totals = dict(left)
    order = np.random.default_rng(SEED).permutation(len(presence)).tolist()
    chosen: set[int] = set()

    def take(index: int) -> bool:
        if index in chosen or any(left[name] <= 1 for name in presence[index]):
            return False
        chosen.add(index)
        left.subtract(presence[index])
        return True

    showing: dict[int, list[int]] = {name: [] for name in totals}
    for index in order:
        for name in presence[index]:
            showing[name].append(index)
    for name in sorted(totals, key=lambda name: (totals[name], name)):
        wanted = max(1, round(share * totals[name]))
        for index in showing[name]:
            if totals[name] - left[name] >= wanted:
                break
            take(index)
    for index in order:
        if len(chosen) >= round(share * len(presence)):
            break
        take(index)
    return chosen
