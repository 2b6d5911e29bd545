"""Which classes each image shows: read once from all masks, images checked along the way, and cached."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import platformdirs
from numpy.typing import NDArray

from incseg.datasets.source import Split
from incseg.errors import InputError
from incseg.files import replacing
from incseg.protocol import IGNORE

Progress = Callable[[int, int], None]  # (done, of)
Found = TypeVar("Found")


def class_presence(
    split: Split, classes: Sequence[str], cache: Path | None = None, progress: Progress | None = None
) -> list[frozenset[int]]:
    """The dataset's class ids in each mask, without the ignored 255.

    A mask with an id that ``classes`` does not have is refused, with the file's name. The result is kept below
    ``cache`` (the user's cache folder by default) under a fingerprint of the masks, so that only the first scan of a
    dataset reads them all.
    """
    cached = _cache_file(split, cache)
    if cached is not None and cached.exists():
        found = [frozenset(ids) for ids in json.loads(cached.read_text())]
    else:
        found = _scan(split, progress)
        # A cache that cannot be written is no reason to stop.
        with suppress(OSError):
            if cached is not None:
                with replacing(cached) as temporary:
                    temporary.write_text(json.dumps([sorted(ids) for ids in found]))
    for index, ids in enumerate(found):
        refuse_unknown(split, index, ids, classes)
    return found


def refuse_unknown(split: Split, index: int, ids: Iterable[int], classes: Sequence[str]) -> None:
    """Refuse a mask with an id that no class has."""
    unknown = [found for found in sorted(ids) if found >= len(classes) and found != IGNORE]
    if unknown:
        raise InputError(
            f"the mask {split.where(index)} holds the id {unknown[0]}, but there are only {len(classes)} classes "
            f"(0 '{classes[0]}' to {len(classes) - 1} '{classes[-1]}'; {IGNORE} is ignored)."
        )


def pixel_counts(split: Split, index: int) -> NDArray[np.int64]:
    """How many pixels of a mask have each id, from 0 to at least 255."""
    mask = split.mask(index).numpy()
    if not mask.size or mask.min() < 0:
        raise InputError(f"the mask {split.where(index)} is empty or holds negative ids.")
    return np.bincount(mask.ravel(), minlength=IGNORE + 1)


def in_threads(look: Callable[[int], Found], number: int, progress: Progress | None) -> Iterator[Found]:
    """``look(0)``, ``look(1)``, … in order. Pillow decodes without holding Python's lock, so threads are enough."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for done, found in enumerate(pool.map(look, range(number)), start=1):
            if progress is not None:
                progress(done, number)
            yield found


def _scan(split: Split, progress: Progress | None) -> list[frozenset[int]]:
    def ids_of(index: int) -> frozenset[int]:
        split.check(index)
        return frozenset(np.flatnonzero(pixel_counts(split, index)).tolist()) - {IGNORE}

    return list(in_threads(ids_of, len(split), progress))


def _cache_file(split: Split, cache: Path | None) -> Path | None:
    fingerprint = split.fingerprint()
    if fingerprint is None:
        return None
    folder = cache if cache is not None else Path(platformdirs.user_cache_dir("incseg"))
    return folder / "scans" / f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:32]}.json"
