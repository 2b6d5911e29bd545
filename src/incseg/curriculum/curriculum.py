"""What is learnt when: for every step, the images to learn from, their labels, and what is scored."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from incseg.curriculum.lists import read_lists, refuse_strays
from incseg.curriculum.rules import (
    Background,
    Future,
    Void,
    images_per_step,
    scored_images,
    scoring_table,
    training_table,
)
from incseg.datasets.scan import Progress, class_presence
from incseg.datasets.source import Source, dataset_entry
from incseg.errors import InputError
from incseg.loading.batches import ScoredImages, TrainingImages
from incseg.loading.replay import ClassPictures, KeptImages
from incseg.loading.transforms import CentreCrop, TrainingTransform
from incseg.protocol import Protocol, Step, class_order


@dataclass(frozen=True)
class LabelPolicy:
    """The choices on which codebases differ; the defaults are the paper's."""

    void: Void = "ignore"
    scored_void: Void = "ignore"
    future: Future = "background"
    background: Background = "score"
    score_on_all: bool = False


class Curriculum(ABC):
    """Steps, with the images and labels of each."""

    source: Source
    steps: list[Step]
    classes: tuple[str, ...]
    """The name of every channel, background first."""
    protocol: Protocol
    indices: Sequence[Sequence[int]]
    """Per step, the training images it learns from, by their number in the dataset."""

    @abstractmethod
    def training_images(self, step: Step, crop_size: int, *, keep_old: bool = False) -> TrainingImages:
        """What a step learns from; with ``keep_old`` also all images of earlier steps, under all labels seen so far."""

    @abstractmethod
    def training_table(self, step: Step, *, keep_old: bool = False) -> Tensor:
        """(256,) dataset id → channel, as a step learns it."""

    @abstractmethod
    def shown(self, step: Step) -> dict[int, frozenset[int]]:
        """Training image → the step's new channels it shows, for the images the step learns from."""

    @abstractmethod
    def scored_images(self, step: Step) -> list[ScoredImages]:
        """What is scored after a step: collections that may differ in which classes their masks label."""

    @abstractmethod
    def pictured_images(self, step: Step, number: int) -> tuple[list[str], ScoredImages]:
        """The validation images that show the most classes, the same at every step, to look at, and their names."""

    def describe(self) -> dict[str, Any]:
        """Which images each step learns from, by name and by index, ready to be written as JSON."""
        return {
            "protocol": str(self.protocol),
            "steps": [
                {
                    "step": step.index,
                    "classes": [self.classes[channel] for channel in step.new],
                    "images": [self.source.train.ids[index] for index in indices],
                    "indices": list(indices),
                }
                for step, indices in zip(self.steps, self.indices, strict=True)
            ],
        }


class ProtocolCurriculum(Curriculum):
    """The steps of a protocol on a dataset that labels all its classes."""

    def __init__(
        self,
        source: Source,
        protocol: Protocol,
        *,
        wanted_order: Sequence[str] | None = None,
        lists: Path | None = None,
        policy: LabelPolicy | None = None,
        scored_crop: CentreCrop | None = None,
        progress: Progress | None = None,
    ):
        self.source, self.protocol, self.policy = source, protocol, policy or LabelPolicy()
        self.scored_crop = scored_crop
        self.order = class_order(source.classes, wanted_order, source.orders)
        self.steps = protocol.steps(len(source.classes) - 1)
        self.classes = tuple(source.classes[dataset_id] for dataset_id in self.order)
        self._train_presence = class_presence(source.train, source.classes, progress=progress)
        self._val_presence = class_presence(source.val, source.classes, progress=progress)
        self.indices = self._listed(lists) if lists is not None else self._by_rule()
        for step in self.steps:
            self._require_images(step)

    def training_images(self, step: Step, crop_size: int, *, keep_old: bool = False) -> TrainingImages:
        """By the protocol's rule, or as listed."""
        lists = self.indices[: step.index + 1] if keep_old else [self.indices[step.index]]
        chosen = sorted({index for indices in lists for index in indices})
        table = self.training_table(step, keep_old=keep_old)
        return TrainingImages(self.source.train, chosen, table, TrainingTransform(crop_size))

    def training_table(self, step: Step, *, keep_old: bool = False) -> Tensor:
        """Only the step's classes are labelled, or with ``keep_old`` all seen so far."""
        return training_table(step, self.order, self.policy.void, keep_old=keep_old)

    def shown(self, step: Step) -> dict[int, frozenset[int]]:
        """From the scan of the masks."""
        channels = {self.order[channel]: channel for channel in step.new}
        return {
            i: frozenset(channels[c] for c in self._train_presence[i] if c in channels)
            for i in self.indices[step.index]
        }

    def scored_images(self, step: Step) -> list[ScoredImages]:
        """Validation images that show a class seen so far, or all."""
        everything = list(range(len(self.source.val)))
        indices = everything if self.policy.score_on_all else scored_images(self._val_presence, step, self.order)
        return [self._scored(step, indices)]

    def pictured_images(self, step: Step, number: int) -> tuple[list[str], ScoredImages]:
        """From the scan of the masks."""
        crowded = sorted(range(len(self.source.val)), key=lambda i: (-len(self._val_presence[i]), i))[:number]
        return [self.source.val.ids[i] for i in crowded], self._scored(step, crowded)

    def _scored(self, step: Step, indices: Sequence[int]) -> ScoredImages:
        policy = self.policy
        table = scoring_table(step, self.order, policy.future, policy.scored_void, policy.background)
        return ScoredImages(self.source.val, indices, table, crop=self.scored_crop)

    def _by_rule(self) -> list[list[int]]:
        setting, disjoint = self.protocol.setting, dataset_entry(self.protocol.dataset).disjoint
        return images_per_step(self._train_presence, self.steps, setting, self.order, disjoint)

    def _listed(self, path: Path) -> list[list[int]]:
        lists = read_lists(path, self.source.train.ids, self.protocol, self.steps, self.classes)
        refuse_strays(lists, self._train_presence, self.steps, self.source, self.order)
        return [found.indices for found in lists]

    def _require_images(self, step: Step) -> None:
        """A class that no image of its step shows cannot be learnt; better to know now than after the training."""
        shown = frozenset[int]().union(*(self._train_presence[index] for index in self.indices[step.index]))
        absent = [self.classes[channel] for channel in step.new if self.order[channel] not in shown]
        if absent:
            raise InputError(
                f"step {step.index} of {self.protocol} has no training image that shows '{absent[0]}'"
                f"{f' (nor {len(absent) - 1} of its other classes)' if absent[1:] else ''} in {self.source.name}; use "
                "another task, class order or setting."
            )
        if not scored_images(self._val_presence, step, self.order):
            raise InputError(
                f"after step {step.index} ({', '.join(self.classes[c] for c in step.new)}) no validation image of "
                f"{self.source.name} shows a class learnt so far: there would be nothing to score; add such images to "
                "the validation split."
            )


@dataclass(frozen=True)
class Library:
    """The data as a replaying part sees it, at one step."""

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
        """Training images of earlier steps under their labels of that time, each in memory of a class."""
        tables = [self.curriculum.training_table(self.curriculum.steps[index]) for index in steps]
        return KeptImages(channels, self._transform, self.curriculum.source.train, images, tables)

    def pictures(self, files: Sequence[Path], channels: Sequence[int]) -> ClassPictures:
        """Picture files without masks, each in memory of a class."""
        return ClassPictures(channels, self._transform, files)

    @property
    def _transform(self) -> TrainingTransform:
        return TrainingTransform(self.crop_size)
