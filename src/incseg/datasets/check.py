"""Checks every file of a dataset, and collects all problems instead of stopping at the first."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.contents import contents_of
from incseg.datasets.scan import in_threads, mask_ids, refuse_unknown
from incseg.datasets.source import ReportProgress, Split
from incseg.errors import InputError
from incseg.protocol import IGNORE

Counts = NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)
# Kinds of problems, in the order in which a pair of files is checked; the first one found ends the check of that pair.
KINDS = ("missing files", "damaged files", "unreadable images", "unusable masks", "unknown ids")

BETWEEN = 0.9  # the share of a class's pixels from which on it is taken for a product of interpolation
INTERPOLATED = (
    "It occurs only along borders, between a smaller and a larger id, as in masks resized with interpolation: "
    "resize masks by nearest neighbour only."
)


def _zeros() -> Counts:
    return np.zeros(IGNORE + 1, np.int64)


@dataclass
class Findings:
    """What a split holds: by id, (256,) how many pixels and how many images show it; and its problems by kind."""

    images: int
    pixels: Counts = field(default_factory=_zeros)
    shown_by: Counts = field(default_factory=_zeros)
    interpolated_in: Counts = field(default_factory=_zeros)
    """By id, the images in which most of its pixels lie between a smaller and a larger id."""
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    usable: dict[int, frozenset[int]] = field(default_factory=dict)
    """Image without problems → the ids it shows."""
    refused: dict[int, str] = field(default_factory=dict)
    """Image with a problem → its kind."""
    contents: dict[str, str] = field(default_factory=dict)
    """Of a full check, the contents of every file; see :mod:`incseg.datasets.contents`."""


class Look(NamedTuple):
    """What one image and its mask hold: the kind of problem and a sentence, or how many pixels have each id."""

    kind: str = ""
    sentence: str = ""
    pixels: Counts = _zeros()
    between: Counts = _zeros()
    contents: Mapping[str, str] = MappingProxyType({})


def examine(
    split: Split, classes: Sequence[str], report_progress: ReportProgress | None = None, *, full: bool = False
) -> Findings:
    """Decode every image and mask of a split completely; ``full``: compare files' own checksums, and note contents."""
    missing = set(split.missing())
    findings = Findings(len(split))
    findings.problems["missing files"] = [f"{path} is missing." for path in sorted(missing)]

    def look(index: int) -> Look:
        if missing.intersection(split.files(index)):
            return Look("missing files")
        seen = _look(split, index, classes, full)
        return seen._replace(contents=contents_of(split.files(index))) if full else seen

    for index, seen in enumerate(in_threads(look, len(split), report_progress)):
        findings.contents |= seen.contents
        if seen.kind:
            findings.refused[index] = seen.kind
            findings.problems[seen.kind] += [seen.sentence] if seen.sentence else []
        else:
            findings.pixels += seen.pixels
            findings.interpolated_in += mostly_between(seen.pixels, seen.between)
            findings.shown_by += seen.pixels > 0
            findings.usable[index] = frozenset(np.flatnonzero(seen.pixels).tolist())
    return findings


def _look(split: Split, index: int, classes: Sequence[str], full: bool) -> Look:
    kind, hint = "damaged files", ""
    try:
        if full:
            split.require_intact(index)
        kind = "unreadable images"
        split.image(index)
        kind = "unusable masks"
        mask = mask_ids(split, index)
        kind = "unknown ids"
        pixels = np.bincount(mask.ravel(), minlength=IGNORE + 1)
        between = np.bincount(mask[lies_between(mask)], minlength=len(pixels))
        unknown = np.arange(len(pixels)) >= len(classes)
        unknown[IGNORE] = False
        hint = f" {INTERPOLATED}" if mostly_between(pixels[unknown].sum(), between[unknown].sum()).all() else ""
        refuse_unknown(split, index, np.flatnonzero(pixels).tolist(), classes)
    except InputError as error:
        return Look(kind, f"{error}{hint}")
    return Look(pixels=pixels, between=between)


def lies_between(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """(H, W) pixels with both a smaller and a larger id among their eight neighbours, as interpolation makes them."""
    low, high = (_over_neighbours(reduce, mask) for reduce in (np.minimum, np.maximum))
    between: NDArray[np.bool_] = (low < mask) & (mask < high)
    return between


def _over_neighbours(reduce: np.ufunc, mask: NDArray[Any]) -> NDArray[Any]:
    """(H, W) the smallest or largest of every pixel and its eight neighbours."""
    padded = np.pad(mask, 1, mode="edge")
    rows = reduce(reduce(padded[:-2], padded[1:-1]), padded[2:])
    over: NDArray[Any] = reduce(reduce(rows[:, :-2], rows[:, 1:-1]), rows[:, 2:])
    return over


def mostly_between(pixels: NDArray[Any], between: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether ids with so many pixels in a mask, so many of them between others, are products of interpolation."""
    mostly: NDArray[np.bool_] = (pixels > 0) & (between >= BETWEEN * pixels)
    return mostly


def varied_images(shown_by: Mapping[Key, frozenset[int]], usual: int) -> list[Key]:
    """Images to show a person, chosen greedily: the next one shows the most classes not yet shown.

    As many as it takes to show every class, and the usual number if that is more and there are so many.
    """
    chosen: list[Key] = []
    left, unseen = dict(shown_by), frozenset[int]().union(*shown_by.values())
    while left and (unseen or len(chosen) < usual):
        best = max(left, key=lambda image: (len(left[image] & unseen), len(left[image])))
        chosen.append(best)
        unseen -= left.pop(best)
    return chosen
