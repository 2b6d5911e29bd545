"""Looking at every file of a dataset, and gathering all that is wrong instead of stopping at the first."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.scan import Progress, in_threads, pixel_counts, refuse_unknown
from incseg.datasets.source import Split
from incseg.errors import InputError
from incseg.protocol import IGNORE

Counts = NDArray[np.int64]
# What can be wrong, in the order in which it is looked for: of a file that is not there, nothing more can be said.
KINDS = ("missing files", "unreadable images", "unusable masks", "unknown ids")


@dataclass
class Findings:
    """What a split holds: (256,) numbers of pixels and of images by id, and sentences on what is wrong, by kind."""

    images: int
    pixels: Counts = field(default_factory=lambda: np.zeros(IGNORE + 1, np.int64))
    shown_by: Counts = field(default_factory=lambda: np.zeros(IGNORE + 1, np.int64))
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    usable: dict[int, frozenset[int]] = field(default_factory=dict)
    """The ids that each image shows in which nothing is wrong."""


def examine(split: Split, classes: Sequence[str], progress: Progress | None = None) -> Findings:
    """Read every image and mask of a split, to the last pixel."""
    missing = set(split.missing())
    findings = Findings(len(split))
    findings.problems["missing files"] = [f"{path} is missing." for path in sorted(missing)]

    def look(index: int) -> tuple[str, str, Counts]:
        kind = "missing files"
        try:
            if missing.intersection(split.files(index)):
                return kind, "", np.empty(0, np.int64)
            kind = "unreadable images"
            split.image(index)
            kind = "unusable masks"
            counts = pixel_counts(split, index)
            kind = "unknown ids"
            refuse_unknown(split, index, np.flatnonzero(counts).tolist(), classes)
        except InputError as error:
            return kind, str(error), np.empty(0, np.int64)
        return "", "", counts

    for index, (kind, sentence, counts) in enumerate(in_threads(look, len(split), progress)):
        if sentence:
            findings.problems[kind].append(sentence)
        elif not kind:
            findings.pixels += counts
            findings.shown_by += counts > 0
            findings.usable[index] = frozenset(np.flatnonzero(counts).tolist()) - {IGNORE}
    return findings


def varied_images(findings: Findings, most: int) -> list[int]:
    """Images to look at: again and again the one that shows the most classes not yet shown."""
    chosen: list[int] = []
    left, unseen = dict(findings.usable), frozenset[int]().union(*findings.usable.values())
    while left and len(chosen) < most:
        best = max(left, key=lambda index: (len(left[index] & unseen), len(left[index]), -index))
        chosen.append(best)
        unseen -= left.pop(best)
    return chosen
