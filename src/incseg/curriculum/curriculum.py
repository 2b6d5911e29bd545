"""What a curriculum is: for every step, the images to learn from, their labels, and what is scored."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from incseg.config import DataConfig
from incseg.curriculum.old_images import OldImages
from incseg.datasets import ReportProgress, Source, Split
from incseg.datasets.saliency import SalientSplit
from incseg.datasets.scan import class_presence
from incseg.errors import refuse
from incseg.loading import ClassPictures, KeptImages, ScoredImages, TrainingImages, TrainingTransform
from incseg.loading.reduced import reduced
from incseg.protocol import BACKGROUND, IGNORE, Protocol, Step


class Curriculum(ABC):
    """The steps of a run, with the images and labels of each."""

    source: Source
    data: DataConfig
    steps: list[Step]
    classes: tuple[str, ...]
    """The name of every channel, background first."""
    protocol: Protocol
    indices: Sequence[Sequence[int]]
    """Per step, the training images it learns from, as indices into ``source.train``."""
    domains: Sequence[str] = ()
    """In a domain protocol, their names in the order of learning."""
    remarks: Sequence[str] = ()
    """What a person should know of the data, in one line each."""
    old_images: OldImages | None = None
    """Images of old classes that a person has kept and gives to an extension."""
    unreadable: list[str]
    """A sentence for each file that could not be read when masks were scanned, where settings say to skip it."""

    @cached_property
    def learnt_from(self) -> Split:
        """The training images as the network is to see them: large ones reduced, if the settings say so."""
        return reduced(self._with_maps, self.data.longest_side)

    @cached_property
    def _with_maps(self) -> Split:
        """The training images, with their saliency maps where such are given."""
        maps = self.data.saliency
        return self.source.train if maps is None else SalientSplit(self.source.train, maps)

    def _presence_in(
        self, split: Split, classes: Sequence[str], report_progress: ReportProgress | None
    ) -> list[frozenset[int]]:
        """The class ids in each mask of a split; a file that cannot be read is refused or skipped."""
        found: dict[str, None] = {}
        note = refuse if self.data.on_error == "stop" else found.setdefault
        presence = class_presence(split, classes, report_progress=report_progress, note=note)
        self.unreadable += sorted(found.keys() - {*self.unreadable})
        return presence

    @abstractmethod
    def training_images(self, step: Step, crop_size: int, *, keep_old: bool = False) -> TrainingImages:
        """What a step learns from; with ``keep_old`` also the images of earlier steps, with all classes seen so far."""

    @abstractmethod
    def training_table(self, step: Step, *, keep_old: bool = False) -> Tensor:
        """(256,) dataset id → channel, as a step learns it."""

    @abstractmethod
    def shown(self, step: Step) -> dict[int, frozenset[int]]:
        """Training image → the step's new channels it shows, for the images the step learns from."""

    @abstractmethod
    def scored_images(self, step: Step) -> list[ScoredImages]:
        """The images scored after a step: a collection per set of classes that masks label, or per step's domains."""

    def unlabelled(self, step: Step) -> frozenset[int]:
        """Channels that the masks of no scored image label: these cannot be measured.

        Background is among them unless some masks label every channel, since elsewhere it may be any class.
        """
        found = self.scored_images(step)
        labelled = {channel for images in found for channel in images.labelled_channels(step.num_classes)}
        certain = any(images.labels_all(step.num_classes) for images in found)
        return frozenset(range(step.num_classes)) - labelled | (frozenset() if certain else {BACKGROUND})

    @abstractmethod
    def pictured_images(self, step: Step, number: int) -> tuple[list[str], ScoredImages]:
        """Names and images of the validation images that show the most classes; the same images at every step."""

    def domains_of(self, step: Step) -> list[str]:
        """The names of the domains that a step brings, where steps bring domains."""
        return [self.domains[index] for index in step.domains]

    def splits(self) -> dict[str, Split]:
        """All images that the run depends on, by what they are for."""
        return {"training": self._with_maps, "validation": self.source.val}

    def describe(self) -> dict[str, Any]:
        """Which images each step learns from, by name and by index, ready to be written as JSON."""
        return {
            "protocol": str(self.protocol),
            "steps": [
                {
                    "step": step.index,
                    "classes": [self.classes[channel] for channel in step.new],
                    **({"domains": self.domains_of(step)} if step.domains else {}),
                    "images": [self.source.train.ids[index] for index in indices],
                    "indices": list(indices),
                }
                for step, indices in zip(self.steps, self.indices, strict=True)
            ],
        }


@dataclass(frozen=True)
class Library:
    """The training data, as a part of a method that replays images may use it."""

    curriculum: Curriculum
    crop_size: int

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of every channel, background first."""
        return self.curriculum.classes

    def shown(self, step: int) -> dict[int, frozenset[int]]:
        """Training image → the new classes it is labelled with, for the images of a step."""
        return self.curriculum.shown(self.curriculum.steps[step])

    def kept(self, images: Sequence[int], steps: Sequence[int], channels: Sequence[int]) -> KeptImages:
        """Training images of earlier steps with the labels of those steps, each kept for one old class."""
        tables = [self.curriculum.training_table(self.curriculum.steps[index]) for index in steps]
        return KeptImages(channels, self._transform, self.curriculum.learnt_from, images, tables)

    def given(self, *, completed: bool = False) -> KeptImages | None:
        """The old images that a person has kept; None where there are none.

        Their background may be a class that was learnt later, so it is unlabelled (255), unless their masks label the
        new classes too; and all classes, where the step is one in which background hides none. A method that completes
        labels by itself asks for it as it is (``completed``).
        """
        old, step = self.curriculum.old_images, self.curriculum.steps[-1]
        if old is None:
            return None
        is_certain = completed or old.labelled >= set(step.seen if step.complete else step.new)
        table, split = old.table(BACKGROUND if is_certain else IGNORE), reduced(old.split, self._longest_side)
        return KeptImages(old.kept_for, self._transform, split, range(len(split)), [table] * len(split))

    def pictures(self, files: Sequence[Path], channels: Sequence[int]) -> ClassPictures:
        """Picture files without masks, each of one old class."""
        return ClassPictures(channels, self._transform, files, self._longest_side)

    @property
    def _longest_side(self) -> int | None:
        return self.curriculum.data.longest_side

    @property
    def _transform(self) -> TrainingTransform:
        return TrainingTransform(self.crop_size)
