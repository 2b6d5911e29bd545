"""The curriculum of an extension: step 0 is what a given model already knows, step 1 the new classes of a folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from incseg.config import DataConfig
from incseg.curriculum.curriculum import Curriculum
from incseg.curriculum.old_images import OldImages
from incseg.curriculum.rules import images_showing_most, sampling_weights, training_table
from incseg.datasets import ReportProgress, Source, Split, open_source
from incseg.datasets.class_names import new_classes
from incseg.datasets.source import plain
from incseg.errors import InputError, closest
from incseg.loading import ScoredImages, TrainingImages, TrainingTransform
from incseg.protocol import BACKGROUND, IGNORE, Protocol, Setting, Step


class LabelledSplit(NamedTuple):
    """Validation images, the classes that their masks label, and the channel of each of these classes."""

    split: Split
    classes: Sequence[str]
    channels: Sequence[int]


class Extension(Curriculum):
    """The two steps of an extension, with the images and labels of each.

    The folder names the new classes, and may name known ones, which keep their channels. Two sets of images are scored:
    the folder's own validation images, and those of ``data.validation``, a second folder that may label any class. A
    class is scored only on images that label it, and background only on images that label every class known. Pixels of
    a class that the scored model does not know are left out.
    """

    def __init__(self, source: Source, data: DataConfig, report_progress: ReportProgress | None = None):
        known, validation = data.known, data.validation
        assert known is not None, "an extension needs the classes that the given model knows"
        self.source, self.data = source, data
        new = new_classes(known, source)
        self.classes = (*known, *new)
        self.protocol = Protocol(source.name, f"{len(known) - 1}-{len(new)}", Setting.OVERLAPPED)
        given, extended = self.protocol.steps(len(self.classes) - 1)
        self.indices = ((), range(len(source.train)))  # the images that the given model learnt from are not available
        self._channels = self._by_name(source.classes)
        self._labelled_old = tuple(channel for channel in self._channels if channel in extended.old)
        if data.complete:
            self._require_complete(extended.old)
        if data.replay is not None:
            self.old_images = OldImages.read(data.replay, data, known, new, report_progress)
        replayed = self.old_images.labelled if self.old_images is not None else frozenset[int]()
        relearnt = tuple(channel for channel in extended.old if channel in replayed.union(self._labelled_old))
        self.steps = [given, replace(extended, labelled_old=relearnt, complete=data.complete)]
        self.unreadable = []
        self._presence = self._presence_in(source.train, source.classes, report_progress)
        self._require_every_class()
        self._scored = [LabelledSplit(source.val, source.classes, self._channels)]
        if validation is not None:
            other = open_source("folder", validation, data)
            channels = self._by_name(other.classes)
            self._require_known(validation, other.classes, channels)
            others = (LabelledSplit(split, other.classes, channels) for split in other.to_score())
            self._warn_of_learnt_images(validation, other)
            self._scored = [*others, *self._scored]
        self._require_scored(report_progress)

    def training_images(self, step: Step, crop_size: int, *, keep_old: bool = False) -> TrainingImages:
        """Every image of the folder; there are none of step 0."""
        table = self.training_table(step, keep_old=keep_old)
        weights = sampling_weights(list(self.shown(step).values()), self.data)
        return TrainingImages(self.learnt_from, self.indices[step.index], table, TrainingTransform(crop_size), weights)

    def training_table(self, step: Step, *, keep_old: bool = False) -> Tensor:
        """The folder labels the new classes, and those of the known ones that it names."""
        assert step.index == 1
        assert not keep_old
        labelled = replace(step, labelled_old=self._labelled_old)  # here, and not in replayed images
        return training_table(labelled, {channel: index for index, channel in enumerate(self._channels)}, self.data)

    def shown(self, step: Step) -> dict[int, frozenset[int]]:
        """From the scan of the masks."""
        foreground = range(1, len(self._channels))
        return {
            i: frozenset(self._channels[c] for c in self._presence[i] if c in foreground) & frozenset(step.new)
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
        indices = images_showing_most(self._presence_in(scored.split, scored.classes, None), number)
        return [scored.split.ids[index] for index in indices], self._scored_images(scored, indices, step)

    def unlabelled(self, step: Step) -> frozenset[int]:
        """Also what masks could label and never do: a few images need not show every class that they name."""
        shown = {
            scored.channels[found]
            for scored in self._scored
            for ids in self._presence_in(scored.split, scored.classes, None)
            for found in ids
            if found < len(scored.channels)
        }
        return super().unlabelled(step) | (frozenset(range(1, step.num_classes)) - shown)

    def splits(self) -> dict[str, Split]:
        """Also those of the second folder, and old ones."""
        others = {f"scored {number}": scored.split for number, scored in enumerate(self._scored)}
        replayed = {} if self.old_images is None else {"replayed": self.old_images.split}
        return {**super().splits(), **others, **replayed}

    @staticmethod
    def _scored_images(scored: LabelledSplit, indices: Sequence[int], step: Step) -> ScoredImages:
        """Images with their labels; pixels of a class that the step does not know are left out.

        So background is the same pixels before and after the extension.
        """
        known = [channel if channel < step.num_classes else IGNORE for channel in scored.channels]
        table = torch.full((IGNORE + 1,), BACKGROUND, dtype=torch.int64)
        table[: len(known)] = torch.tensor(known)
        table[IGNORE] = IGNORE
        return ScoredImages(scored.split, indices, table, [channel for channel in known if channel != IGNORE])

    def _by_name(self, names: Sequence[str]) -> list[int]:
        """The channel of each class of a folder, 255 for one that is not known; the first is the background."""
        channels = {plain(known): channel for channel, known in enumerate(self.classes) if channel != BACKGROUND}
        return [BACKGROUND, *(channels.get(plain(name), IGNORE) for name in names[1:])]

    def _require_complete(self, old: Sequence[int]) -> None:
        """Refuse to take background for background where the folder cannot label all that lies in it."""
        missing = [self.classes[channel] for channel in old if channel not in self._labelled_old]
        if missing:
            raise InputError(
                f"--data.complete true says that {self.source.name} labels every class that the model knows, and its "
                f"classes.txt does not name {', '.join(missing)}: name and label them too, or leave it out."
            )

    def _require_known(self, folder: Path, names: Sequence[str], channels: Sequence[int]) -> None:
        """Refuse a validation folder of foreign classes only; of others, say which are not scored."""
        foreign = [name for name, channel in zip(names, channels, strict=True) if channel == IGNORE]
        if len(foreign) == len(names) - 1:
            raise InputError(
                f"{folder / 'classes.txt'} names '{foreign[0]}' and no class that the extended model knows: these are "
                f"{', '.join(self.classes[1:])}.{closest(foreign[0], self.classes[1:])}"
            )
        if foreign:
            self.remarks = (
                *self.remarks,
                f"{', '.join(foreign)} of {folder.name} {'is' if len(foreign) == 1 else 'are'} not known to the "
                "extended model: pixels labelled so are not scored.",
            )

    def _warn_of_learnt_images(self, folder: Path, other: Source) -> None:
        """Say so if a model would be scored on images that it has just learnt from."""
        if self.data.root is not None and folder.resolve() == self.data.root and not other.validation.given:
            sentence = (
                f"{folder.name} is scored as a whole, and most of its images are learnt from: scores will be too high."
            )
            self.remarks = (*self.remarks, sentence)

    def _require_scored(self, report_progress: ReportProgress | None) -> None:
        """Check the masks before training, for which there must be something to be scored on; the scan is cached."""
        for split, classes, _ in self._scored:
            self._presence_in(split, classes, report_progress)
        if self.data.validation is not None and not any(len(scored.split) for scored in self._scored[:-1]):
            raise InputError(f"--validation {self.data.validation} has an empty val.txt: it lists no image to score.")
        if not any(len(scored.split) for scored in self._scored):
            raise InputError(
                f"{self.source.name} has no validation image, nothing to score on: give it more images, of which a "
                "fifth is held out unless a val.txt lists others, or score on another folder with --validation DIR."
            )

    def _require_every_class(self) -> None:
        shown = frozenset().union(*self._presence) if self._presence else frozenset()
        for dataset_id, name in enumerate(self.source.classes):
            if self._channels[dataset_id] in self.steps[1].new and dataset_id not in shown:
                raise InputError(
                    f"no training image of {self.source.name} shows '{name}': there is nothing to learn it from "
                    "('incseg data check folder' tells what the masks hold)."
                )
