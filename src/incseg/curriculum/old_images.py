"""Old images: which of many to keep, and how an extension reads those that were kept."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from incseg.config import DataConfig
from incseg.datasets import ReportProgress, open_source
from incseg.datasets.file_split import FileSplit
from incseg.datasets.folder import LAYOUT
from incseg.datasets.scan import class_presence
from incseg.datasets.source import plain
from incseg.errors import InputError, closest
from incseg.protocol import BACKGROUND, IGNORE

SEED = 0  # the choice is the same every time


def keep_balanced(shown: Sequence[frozenset[int]], keep: int) -> list[int]:
    """Which images to keep, in their order; ``shown[i]`` are the classes of image i, and one without any is not kept.

    The class that has the fewest kept images takes the next one that shows it, the rarest of equals first, so that
    every class gets its share, or all it has.
    """
    order = np.random.default_rng(SEED).permutation(len(shown)).tolist()
    totals = Counter(name for classes in shown for name in classes)
    waiting = {name: [index for index in order if name in shown[index]] for name in totals}
    kept: set[int] = set()
    counts: Counter[int] = Counter()
    while len(kept) < keep and waiting:
        name = min(waiting, key=lambda name: (counts[name], totals[name], name))
        waiting[name] = [index for index in waiting[name] if index not in kept]
        if not waiting[name]:
            del waiting[name]
            continue
        index = waiting[name].pop(0)
        kept.add(index)
        counts.update(shown[index])
    return sorted(kept)


@dataclass(frozen=True)
class OldImages:
    """Images of classes that a model knows, from which an extension learns besides its own."""

    split: FileSplit
    classes: tuple[str, ...]
    """By id of the masks, background first."""
    channels: tuple[int, ...]
    """By id, the channel of the extended model; 255 where it has none."""
    shown: Sequence[frozenset[int]]
    """By image, the old channels that it is labelled with; each has one at least."""

    @classmethod
    def read(
        cls,
        folder: Path,
        data: DataConfig,
        known: Sequence[str],
        new: Sequence[str] = (),
        report_progress: ReportProgress | None = None,
    ) -> "OldImages":
        """Those of a folder that show a class of ``known``, at most ``data.replayed_images``, balanced by class.

        Images that were given for validation are left alone.
        """
        if not folder.is_dir():
            raise InputError(f"--replay {folder} is not a folder; it must hold {LAYOUT}.")
        source = open_source("folder", folder, data)
        assert isinstance(source.train, FileSplit)
        assert isinstance(source.val, FileSplit)
        split = source.train if source.validation.given else source.train.followed_by(source.val)
        channels = _channels(folder, source.classes, (*known, *new), len(known))
        presence = class_presence(split, source.classes, report_progress=report_progress)
        old = range(1, len(known))
        shown = [frozenset(channels[found] for found in ids) & frozenset(old) for ids in presence]
        chosen = keep_balanced(shown, len(split) if data.replayed_images is None else data.replayed_images)
        if not chosen:
            raise InputError(f"no image of --replay {folder} shows a class that the model knows: there is nothing old.")
        return cls(split.subset(chosen), source.classes, channels, [shown[index] for index in chosen])

    @property
    def labelled(self) -> frozenset[int]:
        """The foreground channels that these masks label."""
        return frozenset(self.channels) - {BACKGROUND, IGNORE}

    @property
    def kept_for(self) -> list[int]:
        """For each image the rarest old class that it shows."""
        totals = Counter(channel for channels in self.shown for channel in channels)
        return [min(channels, key=lambda channel: (totals[channel], channel)) for channels in self.shown]

    def table(self, background: int) -> Tensor:
        """(256,) id → channel. What the masks call background becomes ``background``: a channel, or 255 for unknown."""
        table = torch.full((IGNORE + 1,), IGNORE)
        table[: len(self.channels)] = torch.tensor(self.channels)
        table[BACKGROUND] = background
        return table


def _channels(folder: Path, names: Sequence[str], classes: Sequence[str], known: int) -> tuple[int, ...]:
    """The channel of each class of the folder, by its name."""
    by_name = {plain(name): channel for channel, name in enumerate(classes) if channel != BACKGROUND}
    channels = (BACKGROUND, *(by_name.get(plain(name), IGNORE) for name in names[1:]))
    if not any(0 < channel < known for channel in channels):
        raise InputError(
            f"{folder / 'classes.txt'} names no class that the model knows ({', '.join(classes[1:known])}): --replay "
            f"takes old images with their labels.{closest(names[-1], classes[1:known])}"
        )
    return channels
