"""What can hardly be right about a dataset although every file can be read: questions for the person who made it."""

from collections.abc import Mapping, Sequence

import numpy as np

from incseg.datasets.check import INTERPOLATED, Counts, Findings
from incseg.datasets.source import BACKGROUND_NAMES, DatasetEntry, plain
from incseg.protocol import BACKGROUND, IGNORE

MOST_NAMES = 5  # in one sentence


def nothing_labelled(entry: DatasetEntry, classes: Sequence[str], found: Mapping[str, Findings]) -> str:
    """A sentence if one's own masks show nothing but background and void, as black and white ones do; empty if not."""
    shown_by = _total(found, "shown_by")
    if entry.published_images is not None or shown_by[1:IGNORE].any() or not shown_by[IGNORE]:
        return ""
    return (
        f"the masks hold no id but 0 and {IGNORE}, and {IGNORE} is void, which is ignored: there is nothing to learn. "
        f"If {IGNORE} marks '{classes[1]}' in them, write '{classes[1]} = {IGNORE}' in its line of classes.txt."
    )


def doubts(entry: DatasetEntry, classes: Sequence[str], found: Mapping[str, Findings]) -> list[str]:
    """Sentences on what to look at, of what was found in each split; none if there is nothing."""
    pixels, shown_by = _total(found, "pixels"), _total(found, "shown_by")
    interpolated = 2 * _total(found, "interpolated_in") > shown_by  # in more than half of the images that show it
    sentences = [f"there is no {split} image." for split, findings in found.items() if not findings.images]
    sentences += [_absent(split, classes, findings.shown_by) for split, findings in found.items()]
    if entry.published_images is None:
        sentences.append(_background(classes, pixels))
    sentences += [
        f"'{name}' (id {index}) in most images that show it: {INTERPOLATED}"
        for index, name in enumerate(classes)
        if index != BACKGROUND and interpolated[index]
    ]
    if entry.doubt is not None:
        sentences.append(entry.doubt(frozenset(np.flatnonzero(pixels).tolist())))
    return [sentence for sentence in sentences if sentence]


def _total(found: Mapping[str, Findings], what: str) -> Counts:
    """(256,) one of the counts by id, added over the splits."""
    total: Counts = sum((getattr(findings, what) for findings in found.values()), np.zeros(IGNORE + 1, np.int64))
    return total


def _absent(split: str, classes: Sequence[str], shown_by: Counts) -> str:
    absent = [f"'{name}'" for index, name in enumerate(classes) if index != BACKGROUND and not shown_by[index]]
    if not absent or not shown_by.any():
        return ""
    more = f" and {len(absent) - MOST_NAMES} more" if len(absent) > MOST_NAMES else ""
    return f"no {split} image shows {', '.join(absent[:MOST_NAMES])}{more}."


def _background(classes: Sequence[str], pixels: Counts) -> str:
    """What is taken for background in one's own data, where that may be a mistake."""
    first, unusual = classes[BACKGROUND], plain(classes[BACKGROUND]) not in BACKGROUND_NAMES
    if pixels.any() and not pixels[BACKGROUND]:
        return (
            f"no mask holds 0, the id of '{first}': the first line of classes.txt is for whatever is none of the "
            "classes, and the ids of the classes count from 1; if every pixel has a class: --data.has-background false."
        )
    if unusual:
        return (
            f"'{first}', the first line of classes.txt, is taken for the background (id 0); if it is a class, write "
            "'background' in a line before it."
        )
    return ""
