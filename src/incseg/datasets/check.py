"""Checks every file of a dataset, and collects all problems instead of stopping at the first."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.scan import in_threads, pixel_counts, refuse_unknown
from incseg.datasets.source import ReportProgress, Split
from incseg.errors import InputError
from incseg.protocol import IGNORE

Counts = NDArray[np.int64]
# Kinds of problems, in the order in which a pair of files is checked; the first one found ends the check of that pair.
KINDS = ("missing files", "unreadable images", "unusable masks", "unknown ids")


@dataclass
class Findings:
    """What a split holds: by id, (256,) how many pixels and how many images show it; and its problems by kind."""

    images: int
    pixels: Counts = field(default_factory=lambda: np.zeros(IGNORE + 1, np.int64))
    shown_by: Counts = field(default_factory=lambda: np.zeros(IGNORE + 1, np.int64))
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    usable: dict[int, frozenset[int]] = field(default_factory=dict)
    """Image without problems → the ids it shows."""


def examine(split: Split, classes: Sequence[str], report_progress: ReportProgress | None = None) -> Findings:
    """Decode every image and mask of a split completely."""
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

    for index, (kind, sentence, counts) in enumerate(in_threads(look, len(split), report_progress)):
        if sentence:
            findings.problems[kind].append(sentence)
        elif not kind:
            findings.pixels += counts
            findings.shown_by += counts > 0
            findings.usable[index] = frozenset(np.flatnonzero(counts).tolist()) - {IGNORE}
    return findings


def varied_images(findings: Findings, most: int) -> list[int]:
    """Indices of images to show a person, chosen greedily: the next one shows the most classes not yet shown."""
    chosen: list[int] = []
    left, unseen = dict(findings.usable), frozenset[int]().union(*findings.usable.values())
    while left and len(chosen) < most:
        best = max(left, key=lambda index: (len(left[index] & unseen), len(left[index]), -index))
        chosen.append(best)
        unseen -= left.pop(best)
    return chosen
