"""Which images are kept for validation where nothing says so: chosen by the classes they show."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from incseg.console import Console, is_rank_zero, progress_of
from incseg.datasets.file_split import FileSplit
from incseg.datasets.scan import class_presence
from incseg.errors import InputError
from incseg.protocol import BACKGROUND

SEED = 0  # the choice is the same every time
PATIENCE = 2.0  # seconds before a log hears of the progress


def hold_out(split: FileSplit, classes: Sequence[str], share: float) -> tuple[FileSplit, FileSplit]:
    """What to learn from and what to be scored on; the scan of the masks is cached.

    Of masks that cannot be read, the classes do not count: whoever reads them next says what is wrong.
    """
    chosen = choose_validation(_foreground(split, classes), share)
    parts = [[index for index in range(len(split)) if (index in chosen) == held] for held in (False, True)]
    return split.subset(parts[0]), split.subset(parts[1])


def _foreground(split: FileSplit, classes: Sequence[str]) -> list[frozenset[int]]:
    nothing: list[frozenset[int]] = [frozenset()] * len(split)
    if split.missing():
        return nothing
    console = Console(stderr=True, quiet=not is_rank_zero())
    try:
        with progress_of("reading which classes each mask shows", console, patience=PATIENCE) as advance:
            return [ids - {BACKGROUND} for ids in class_presence(split, classes, report_progress=advance)]
    except InputError:
        return nothing


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
