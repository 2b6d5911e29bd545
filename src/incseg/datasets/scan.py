"""Which classes each image shows: every mask is read once, every image checked, and the result cached."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import platformdirs
from numpy.typing import NDArray

from incseg.checksums import sealed, unsealed
from incseg.datasets.source import BACKGROUND_NAMES, ReportProgress, Split, plain
from incseg.errors import DamagedError, InputError, Note, refuse
from incseg.files import replacing
from incseg.protocol import IGNORE

Result = TypeVar("Result")
CACHE_FORMAT = 3  # raise it whenever the content of a cache file, or what a scan accepts, changes


def class_presence(
    split: Split,
    classes: Sequence[str],
    cache: Path | None = None,
    report_progress: ReportProgress | None = None,
    note: Note = refuse,
) -> list[frozenset[int]]:
    """The dataset's class ids in each mask, without the ignored 255.

    A mask with an id that ``classes`` does not have is refused, with the file's name. The result is kept below
    ``cache`` (the user's cache folder by default), named after a fingerprint of the files, so that only the first scan
    of a dataset reads them all. A file that cannot be read is refused, or left to ``note``, and then shows no class.
    """
    cached = _cache_file(split, cache)
    found = None if cached is None else _read_cache(cached)
    if found is None:
        found, is_complete = _scan(split, report_progress, note)
        if cached is not None and is_complete:
            _write_cache(cached, found)
    for index, ids in enumerate(found):
        refuse_unknown(split, index, ids, classes)
    return found


def refuse_unknown(split: Split, index: int, ids: Iterable[int], classes: Sequence[str]) -> None:
    """Refuse a mask with an id that no class has."""
    unknown = [found for found in sorted(ids) if found >= len(classes) and found != IGNORE]
    if unknown:
        named = plain(classes[0]) in BACKGROUND_NAMES
        hint = "" if named else f"; is a line for the background missing before '{classes[0]}'?"
        raise InputError(
            f"the mask {split.where(index)} holds the id {unknown[0]}, but there are only {len(classes)} classes "
            f"(0 '{classes[0]}' to {len(classes) - 1} '{classes[-1]}'; {IGNORE} is ignored){hint or '.'}"
        )


def mask_ids(split: Split, index: int) -> NDArray[np.integer[Any]]:
    """(H, W) the ids of a mask, which may be of no class but are not negative."""
    mask: NDArray[np.integer[Any]] = split.mask(index).numpy()
    if not mask.size or mask.min() < 0:
        raise InputError(f"the mask {split.where(index)} is empty or holds negative ids.")
    return mask


def pixel_counts(split: Split, index: int) -> NDArray[np.int64]:
    """How many pixels of a mask have each id, from 0 to at least 255."""
    return np.bincount(mask_ids(split, index).ravel(), minlength=IGNORE + 1)


def in_threads(
    work: Callable[[int], Result], number: int, report_progress: ReportProgress | None = None
) -> Iterator[Result]:
    """``work(0)``, ``work(1)``, … in order. Pillow releases Python's global lock while decoding: threads are enough."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for done, result in enumerate(pool.map(work, range(number)), start=1):
            if report_progress is not None:
                report_progress(done, number)
            yield result


def _scan(split: Split, report_progress: ReportProgress | None, note: Note) -> tuple[list[frozenset[int]], bool]:
    """The ids in each mask, and whether every file could be read."""
    unreadable: list[int] = []

    def ids_of(index: int) -> frozenset[int]:
        try:
            split.check(index)
            return frozenset(np.flatnonzero(pixel_counts(split, index)).tolist()) - {IGNORE}
        except InputError as error:
            note(str(error))
            unreadable.append(index)
            return frozenset()

    return list(in_threads(ids_of, len(split), report_progress)), not unreadable


def _read_cache(path: Path) -> list[frozenset[int]] | None:
    """None if there is no cache, or none that this version wrote, or a damaged one: it is made again."""
    try:
        content = unsealed(json.loads(path.read_text(encoding="utf-8")), path)
    except (OSError, ValueError, DamagedError):
        return None
    return [frozenset(ids) for ids in content["ids"]] if content.get("cache_format") == CACHE_FORMAT else None


def _write_cache(path: Path, found: Sequence[frozenset[int]]) -> None:
    content = sealed({"cache_format": CACHE_FORMAT, "ids": [sorted(ids) for ids in found]})
    with suppress(OSError), replacing(path) as temporary:  # without a cache the next scan only takes longer
        temporary.write_text(json.dumps(content), encoding="utf-8")


def _cache_file(split: Split, cache: Path | None) -> Path | None:
    fingerprint = split.fingerprint()
    if fingerprint is None:
        return None
    folder = cache if cache is not None else Path(platformdirs.user_cache_dir("incseg"))
    return folder / "scans" / f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:32]}.json"
