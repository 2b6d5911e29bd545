"""The curriculum of a protocol, and how any curriculum is built from the data settings."""

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from incseg.config import DataConfig, published_images
from incseg.curriculum.curriculum import Curriculum
from incseg.curriculum.domains import require_domains, shared_out
from incseg.curriculum.extension import Extension
from incseg.curriculum.lists import beside_published, differences, read_lists, refuse_strays
from incseg.curriculum.rules import (
    images_per_step,
    images_showing_most,
    images_showing_seen,
    sampling_weights,
    scored_images,
    scoring_table,
    training_table,
)
from incseg.datasets import ReportProgress, Source, Split, dataset_entry, open_source
from incseg.datasets.saliency import require_maps
from incseg.datasets.source import BACKGROUND_NAMES, plain
from incseg.errors import InputError
from incseg.loading import CentreCrop, ScoredImages, TrainingImages, TrainingTransform
from incseg.protocol import Protocol, Setting, Step, class_order

NAMED = 20  # files that cannot be read, one by one
MASKS_PER_LINE = 2000  # read between two lines of a progress report


def build_curriculum(
    protocol: Protocol,
    data: DataConfig,
    say: Callable[[str], None] | None = None,
    mention: Callable[[str], None] | None = None,
) -> Curriculum:
    """Open the dataset and check every mask against the protocol.

    ``say`` gets what a person should know, ``mention`` (by default ``say``) a line at a time on how it goes.
    """
    say = say or (lambda _: None)
    mention = mention or say

    def report_progress(done: int, total: int) -> None:
        if done % MASKS_PER_LINE == 0:
            mention(f"reading which classes each mask shows: {done} of {total}")

    source = open_source(protocol.dataset, data.root, data)
    for note in source.notes:
        say(note)
    if data.known is not None:
        return _introduced(Extension(source, data, report_progress), say)
    shortfall = dataset_entry(protocol.dataset).shortfall(source)
    if shortfall:
        say(shortfall)
    if otherwise := dataset_entry(protocol.dataset).meant_otherwise(protocol):
        say(otherwise)
    if data.has_background and plain(source.classes[0]) not in BACKGROUND_NAMES:
        say(f"'{source.classes[0]}', the first class of {source.name}, is taken for the background (id 0).")
    kind = DomainCurriculum if protocol.setting is Setting.DOMAIN else ProtocolCurriculum
    return _introduced(kind(source, protocol, data, report_progress), say)


def _introduced(curriculum: Curriculum, say: Callable[[str], None]) -> Curriculum:
    if curriculum.data.saliency is not None:
        require_maps(curriculum.source, curriculum.data.saliency)
    for remark in curriculum.remarks:
        say(remark)
    for sentence in curriculum.unreadable[:NAMED]:
        say(f"left out: {sentence}")
    if len(curriculum.unreadable) > NAMED:
        say(f"left out: {len(curriculum.unreadable) - NAMED} more, see result.json")
    return curriculum


class ProtocolCurriculum(Curriculum):
    """The steps of a protocol on a dataset that labels all its classes.

    ``remarks`` say how the images of the steps compare with the protocol's rule and with the published numbers.
    """

    def __init__(
        self, source: Source, protocol: Protocol, data: DataConfig, report_progress: ReportProgress | None = None
    ):
        self.source, self.protocol, self.data = source, protocol, data
        self.scored_crop = CentreCrop(data.crop_size) if data.scoring == "paper" else None
        self.order = class_order(source.classes, data.class_order, source.orders)
        self.steps = protocol.steps(len(source.classes) - 1, len(self.domains))
        self.classes = tuple(source.classes[dataset_id] for dataset_id in self.order)
        self.unreadable = []
        self._train_presence = self._presence_in(source.train, source.classes, report_progress)
        self._val_presence = self._presence_in(source.val, source.classes, report_progress)
        self.remarks: list[str] = []
        self.indices = self._by_rule() if data.splits is None else self._listed(data.splits)
        self.remarks += filter(None, [self._beside_published()])
        for step in self.steps:
            self._require_images(step)

    def training_images(self, step: Step, crop_size: int, *, keep_old: bool = False) -> TrainingImages:
        """By the protocol's rule, or as listed."""
        lists = self.indices[: step.index + 1] if keep_old else [self.indices[step.index]]
        chosen = sorted({index for indices in lists for index in indices})
        table = self.training_table(step, keep_old=keep_old)
        channels = step.seen if keep_old else step.new + step.labelled_old
        labelled = frozenset(self.order[channel] for channel in channels)
        weights = sampling_weights([self._train_presence[index] & labelled for index in chosen], self.data)
        return TrainingImages(self.learnt_from, chosen, table, TrainingTransform(crop_size), weights)

    def training_table(self, step: Step, *, keep_old: bool = False) -> Tensor:
        """Only the step's classes are labelled, or, with ``keep_old`` and in the sequential setting, all so far."""
        return training_table(step, self.order, self.data, keep_old=keep_old)

    def shown(self, step: Step) -> dict[int, frozenset[int]]:
        """From the scan of the masks."""
        channels = {self.order[channel]: channel for channel in step.new}
        return {
            i: frozenset(channels[c] for c in self._train_presence[i] if c in channels)
            for i in self.indices[step.index]
        }

    def scored_images(self, step: Step) -> list[ScoredImages]:
        """One collection: the masks of the dataset label every class."""
        return [self._scored(step, scored_images(self._val_presence, step, self.order, self.data))]

    def pictured_images(self, step: Step, number: int) -> tuple[list[str], ScoredImages]:
        """From the scan of the masks."""
        indices = images_showing_most(self._val_presence, number)
        return [self.source.val.ids[index] for index in indices], self._scored(step, indices)

    def _scored(self, step: Step, indices: Sequence[int]) -> ScoredImages:
        table = scoring_table(step, self.order, self.data)
        return ScoredImages(self.source.val, indices, table, crop=self.scored_crop)

    @property
    def _is_plain(self) -> bool:
        """Whether an image belongs to a step by what it shows alone, not by what the other images show too."""
        setting, disjoint = self.protocol.setting, dataset_entry(self.protocol.dataset).disjoint
        return setting is Setting.OVERLAPPED or (setting.excludes_future and disjoint == "plain")

    def _by_rule(self) -> list[list[int]]:
        setting, disjoint = self.protocol.setting, dataset_entry(self.protocol.dataset).disjoint
        return images_per_step(self._train_presence, self.steps, setting, self.order, disjoint)

    def _listed(self, path: Path) -> list[list[int]]:
        ids, by_rule = self.source.train.ids, self._by_rule() if self._is_plain else None
        lists = read_lists(path, ids, self.protocol, self.steps, self.classes, by_rule[0] if by_rule else None)
        refuse_strays(lists, self._train_presence, self.steps, self.source, self.order)
        if lists[0].where == path and path.is_dir():
            self.remarks.append(f"{path} has no list of step 0: its images are those of the protocol's rule")
        self.remarks += differences(lists, by_rule, ids) if by_rule else []
        return [found.indices for found in lists]

    def _beside_published(self) -> str:
        published = published_images(str(self.protocol), self.data.class_order)
        return beside_published([len(indices) for indices in self.indices], published, self._is_plain)

    def _require_images(self, step: Step) -> None:
        """Refuse a step with a class that no image shows, before any time is spent on training."""
        shown = frozenset[int]().union(*(self._train_presence[index] for index in self.indices[step.index]))
        absent = [self.classes[channel] for channel in step.new if self.order[channel] not in shown]
        if absent:
            raise InputError(
                f"step {step.index} of {self.protocol} has no training image that shows '{absent[0]}'"
                f"{f' (nor {len(absent) - 1} of its other classes)' if absent[1:] else ''} in {self.source.name}; use "
                "another task, class order or setting ('incseg data check' tells what the masks hold)."
            )
        if not images_showing_seen(self._val_presence, step, self.order):
            raise InputError(
                f"after step {step.index} ({', '.join(self.classes[c] for c in step.new)}) no validation image of "
                f"{self.source.name} shows a class learnt so far: there would be nothing to score; add such images to "
                "the validation split."
            )


class DomainCurriculum(ProtocolCurriculum):
    """The steps of a domain protocol: every class from step 0 on, and in each step the images of further domains.

    After a step the validation images of all domains so far are scored, those of each step for themselves.
    """

    def __init__(
        self, source: Source, protocol: Protocol, data: DataConfig, report_progress: ReportProgress | None = None
    ):
        known = require_domains(source, protocol, data)
        self.domains, self._domain_of = known.names, known.of
        if known.shared_out:
            source = shared_out(source, protocol.steps(len(source.classes) - 1, len(known.names)), known)
        super().__init__(source, protocol, data, report_progress)

    def scored_images(self, step: Step) -> list[ScoredImages]:
        """One collection per step so far, of the domains it brought."""
        return [self._scored(step, self._of_step(other, self.source.val)) for other in self.steps[: step.index + 1]]

    def _of_step(self, step: Step, split: Split) -> list[int]:
        domains = frozenset(self.domains_of(step))
        return [index for index, name in enumerate(split.ids) if self._domain_of(name) in domains]

    def _by_rule(self) -> list[list[int]]:
        return [self._of_step(step, self.source.train) for step in self.steps]

    def _require_images(self, step: Step) -> None:
        """A domain may lack a class, but not images to learn from and to score."""
        for split, purpose in ((self.source.train, "to learn from"), (self.source.val, "to score")):
            if not self._of_step(step, split):
                raise InputError(
                    f"step {step.index} of {self.protocol} has no image {purpose}: {self.source.name} has none of "
                    f"{', '.join(self.domains_of(step))} for that."
                )
