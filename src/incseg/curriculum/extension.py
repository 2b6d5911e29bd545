"""The curriculum of an extension: step 0 is what a given model already knows, step 1 the new classes of a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from incseg.config import DataConfig
from incseg.curriculum.curriculum import Curriculum
from incseg.curriculum.rules import images_showing_most, training_table
from incseg.datasets import ReportProgress, Source, Split, open_source
from incseg.datasets.scan import class_presence
from incseg.errors import InputError, closest
from incseg.loading import ScoredImages, TrainingImages, TrainingTransform
from incseg.protocol import BACKGROUND, IGNORE, Protocol, Setting, Step

BACKGROUND_NAMES = {
    "background", "_background_", "__background__", "bg", "void", "other", "others", "none", "unlabelled", "unlabeled",
}  # fmt: skip


class LabelledSplit(NamedTuple):
    """Validation images, the classes that their masks label, and the channel of each of these classes."""

    split: Split
    classes: Sequence[str]
    channels: Sequence[int]


class Extension(Curriculum):
    """The two steps of an extension, with the images and labels of each.

    Two sets of images are scored: the folder's own validation images, which label only the new classes, and those of
    ``data.validation``, a second folder that may label any class. A class is scored only on images that label it.
    """

    def __init__(self, source: Source, data: DataConfig, report_progress: ReportProgress | None = None):
        known, validation = data.known, data.validation
        assert known is not None, "an extension needs the classes that the given model knows"
        self.source, self.data = source, data
        self.classes = (*known, *source.classes[1:])
        refuse_clashes(known, source)
        self.protocol = Protocol(source.name, f"{len(known) - 1}-{len(source.classes) - 1}", Setting.OVERLAPPED)
        self.steps = self.protocol.steps(len(self.classes) - 1)
        self.indices = ((), range(len(source.train)))  # the images that the given model learnt from are not available
        self._channels = [BACKGROUND, *range(len(known), len(self.classes))]
        self._presence = class_presence(source.train, source.classes, report_progress=report_progress)
        self._require_every_class()
        self._scored = [LabelledSplit(source.val, source.classes, self._channels)]
        if validation is not None:
            other = open_source("folder", validation)
            channels = [BACKGROUND, *(self._channel(name, validation) for name in other.classes[1:])]
            splits = [other.val] if (validation / "val.txt").exists() else [other.train, other.val]
            self._scored = [*(LabelledSplit(split, other.classes, channels) for split in splits), *self._scored]
        for scored in self._scored:  # checks the masks before training; the scan is cached
            class_presence(scored.split, scored.classes, report_progress=report_progress)

    def training_images(self, step: Step, crop_size: int, *, keep_old: bool = False) -> TrainingImages:
        """Every image of the folder; there are none of step 0."""
        table = self.training_table(step, keep_old=keep_old)
        return TrainingImages(self.source.train, self.indices[step.index], table, TrainingTransform(crop_size))

    def training_table(self, step: Step, *, keep_old: bool = False) -> Tensor:
        """The folder labels the new classes only."""
        assert step.index == 1
        assert not keep_old
        return training_table(step, {channel: index for index, channel in enumerate(self._channels)}, self.data)

    def shown(self, step: Step) -> dict[int, frozenset[int]]:
        """From the scan of the masks."""
        foreground = range(1, len(self._channels))
        return {
            i: frozenset(self._channels[c] for c in self._presence[i] if c in foreground)
            for i in self.indices[step.index]
        }

    def scored_images(self, step: Step) -> list[ScoredImages]:
        """One collection per split, each with the classes that are labelled there."""
        return [
            self._scored_images(scored, range(len(scored.split)), step) for scored in self._scored if len(scored.split)
        ]

    def pictured_images(self, step: Step, number: int) -> tuple[list[str], ScoredImages]:
        """Of the second folder if there is one, since it may label old classes too; else of the folder itself."""
        scored = next((scored for scored in self._scored if len(scored.split)), self._scored[-1])
        indices = images_showing_most(class_presence(scored.split, scored.classes), number)
        return [scored.split.ids[index] for index in indices], self._scored_images(scored, indices, step)

    def splits(self) -> dict[str, Split]:
        """Also those of the second folder."""
        others = {f"scored {number}": scored.split for number, scored in enumerate(self._scored)}
        return {**super().splits(), **others}

    @staticmethod
    def _scored_images(scored: LabelledSplit, indices: Sequence[int], step: Step) -> ScoredImages:
        """Images with their labels; a class that the step does not know yet is background."""
        table = torch.full((IGNORE + 1,), BACKGROUND, dtype=torch.int64)
        table[IGNORE] = IGNORE
        for dataset_id, channel in enumerate(scored.channels):
            table[dataset_id] = channel if channel < step.num_classes else BACKGROUND
        labelled = [channel for channel in scored.channels if channel < step.num_classes]
        return ScoredImages(scored.split, indices, table, labelled)

    def _channel(self, name: str, folder: Path) -> int:
        """The channel of a class of the validation folder."""
        names = [plain(known) for known in self.classes]
        if plain(name) not in names[1:]:
            raise InputError(
                f"{folder / 'classes.txt'} names '{name}', which the extended model does not know: its classes are "
                f"{', '.join(self.classes[1:])}.{closest(name, self.classes[1:])}"
            )
        return names.index(plain(name))

    def _require_every_class(self) -> None:
        shown = frozenset().union(*self._presence) if self._presence else frozenset()
        for dataset_id, name in enumerate(self.source.classes):
            if dataset_id > 0 and dataset_id not in shown:
                raise InputError(
                    f"no training image of {self.source.name} shows '{name}': there is nothing to learn it from."
                )


def plain(name: str) -> str:
    """A class name for comparisons: two names that differ only in case or spaces are the same class."""
    return " ".join(name.casefold().split())


def refuse_clashes(known: Sequence[str], source: Source) -> None:
    """Refuse a folder that names a class the model already has: it would become two channels of one name."""
    taken = {plain(name): name for name in known}
    for name in source.classes[1:]:
        if plain(name) in taken:
            raise InputError(
                f"the model already knows '{taken[plain(name)]}': {source.name} must name new classes only, after the "
                "background; rename it there if it is something else, or set its pixels to 0 and leave it out."
            )
    if plain(source.classes[0]) in taken and plain(source.classes[0]) != plain(known[0]):
        raise InputError(
            f"the first line of classes.txt in {source.name} is '{source.classes[0]}', a class of the model: the "
            "background comes first, as id 0 of the masks."
        )
    if len(known) + len(source.classes) - 1 > IGNORE:
        raise InputError(
            f"there can be at most {IGNORE} classes with background, since the id {IGNORE} marks ignored pixels."
        )
