"""The images of a step, to train on by address, and to score, each at its own size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from incseg.batch import Batch
from incseg.datasets import Split
from incseg.datasets.saliency import SALIENT_IDS
from incseg.datasets.scan import in_threads, pixel_counts
from incseg.datasets.source import ReportProgress
from incseg.errors import InputError, Note, refuse
from incseg.loading.addresses import Address
from incseg.loading.reduced import usual_shapes
from incseg.loading.replay import KeptImages, Replay
from incseg.loading.transforms import CentreCrop, ShortSide, TrainingTransform, relabelled
from incseg.protocol import BACKGROUND, IGNORE, SALIENT
from incseg.sizes import Size

NOT_REPLAYED = torch.tensor(BACKGROUND)  # Batch.replayed of the step's own images


@dataclass(frozen=True)
class TrainingImages(Dataset[Batch]):
    """The images of one step with the labels of that step."""

    split: Split
    indices: Sequence[int]
    table: Tensor
    transform: TrainingTransform
    weights: tuple[float, ...] | None = None
    """How often each is drawn, in proportion; None: each once per epoch."""

    def __len__(self) -> int:
        return len(self.indices)

    def pixel_counts(
        self, num_classes: int, report_progress: ReportProgress | None = None, note: Note | None = None
    ) -> Tensor:
        """(C,) float64, the pixels of each channel in the labels of all these images."""

        def counts_of(position: int) -> NDArray[np.int64]:
            try:
                return pixel_counts(self.split, self.indices[position])[: IGNORE + 1]
            except InputError as error:
                (note or refuse)(str(error))
                return np.zeros(IGNORE + 1, np.int64)

        by_id = torch.from_numpy(sum(in_threads(counts_of, len(self), report_progress), np.zeros(IGNORE + 1, np.int64)))
        by_channel = torch.zeros(IGNORE + 1, dtype=torch.int64).index_add_(0, self.table, by_id)
        return by_channel[:num_classes].double()

    def __getitem__(self, address: Address) -> Batch:
        position, seed = address
        index = self.indices[position]
        image, mask = self.transform(self.split.image(index), self.split.mask(index), seed)
        return Batch(image, relabelled(mask, self.table), NOT_REPLAYED)


class Origin(NamedTuple):
    """What an image of a training set is made of."""

    number: int
    """Its index in the split."""
    table: int
    """Which of :attr:`TrainingSet.tables` labels it."""
    replayed: int
    """As in :class:`Batch`."""


class TrainingSet(Dataset[Batch]):
    """The step's own images, followed by those that a method replays."""

    def __init__(self, own: TrainingImages, replay: Replay | None = None):
        self.own, self.replay = own, replay

    @property
    def shares(self) -> tuple[int, int]:
        """The number of the step's own images, and of replayed ones."""
        return len(self.own), 0 if self.replay is None else len(self.replay.images)

    def __getitem__(self, address: Address) -> Batch:
        position, seed = address
        if self.replay is None or position < len(self.own):
            return self.own[position, seed]
        return self.replay.images[position - len(self.own), seed]

    @property
    def is_of_one_split(self) -> bool:
        """Whether all images come from one split, and their labels from its masks."""
        return self.replay is None or self._kept is not None

    def reading(self, split: Split) -> "TrainingSet":
        """The same images, read from another copy of their split; those that are not of it as before."""
        own, replay = replace(self.own, split=split), self.replay
        if replay is not None and self._kept is not None:
            replay = replace(replay, images=replace(self._kept, split=split))
        return TrainingSet(own, replay)

    @property
    def _kept(self) -> KeptImages | None:
        """The replayed images, if they are of the split of the step's own: a person may give others."""
        images = None if self.replay is None else self.replay.images
        return images if isinstance(images, KeptImages) and images.split is self.own.split else None

    def telling_salient(self) -> "TrainingSet":
        """The same images; in their labels, salient background has a number of its own."""
        own, replay = replace(self.own, table=_telling_salient(self.own.table)), self.replay
        if replay is not None and self._kept is not None:
            tables = [_telling_salient(table) for table in self._kept.tables]
            replay = replace(replay, images=replace(self._kept, tables=tables))
        return TrainingSet(own, replay)

    @property
    def tables(self) -> Tensor:
        """(T, 256) id → channel: of the step's own images, and of each replayed one as the step that kept it saw it."""
        return torch.stack([self.own.table, *(() if self._kept is None else self._kept.tables)])

    def origin(self, position: int) -> Origin:
        """What the image at a position is made of, where all come from one split."""
        further = position - len(self.own)
        if self.replay is None or further < 0:
            return Origin(self.own.indices[position], 0, BACKGROUND)
        kept = self._kept
        assert kept is not None
        return Origin(kept.indices[further], 1 + further, kept.channels[further])

    def from_here(self, address: Address) -> Iterator[Address]:
        """The address itself, then the images after it in its share, each of which can take its place."""
        position, seed = address
        own, replayed = self.shares
        first, number = (0, own) if position < own else (own, replayed)
        return ((first + (position - first + further) % number, seed) for further in range(number))


def _telling_salient(table: Tensor) -> Tensor:
    salient = torch.tensor(SALIENT_IDS)
    return table.index_put((salient,), table[salient].masked_fill(table[salient] == BACKGROUND, SALIENT))


def stack(samples: Sequence[Batch]) -> Batch:
    """Samples of one size as one batch."""
    images, labels, replayed, _ = zip(*samples, strict=True)  # salience is told on the device
    return Batch(torch.stack(images), torch.stack(labels), None if replayed[0] is None else torch.stack(replayed))


@dataclass(frozen=True)
class WholeImages(Dataset[Batch]):
    """Images with labels, each at its own size and as it is."""

    split: Split
    indices: Sequence[int]
    table: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Batch:
        index = self.indices[position]
        return Batch(self.split.image(index), self.table[self.split.mask(index).long()])


@dataclass(frozen=True)
class ScaledImages(WholeImages):
    """Whole images with labels, resized."""

    scale: ShortSide

    def __getitem__(self, position: int) -> Batch:
        whole = super().__getitem__(position)
        return Batch(*self.scale(whole.images, whole.labels))


@dataclass(frozen=True)
class ScoredImages(WholeImages):
    """Validation images with the labels they are scored on, at their own size or centre-cropped.

    ``labelled`` are the channels that these masks label; None: all. The masks show every other class as background, so
    a prediction of such a class counts as background too; and background itself is not scored on such images.
    """

    labelled: Sequence[int] | None = None
    crop: CentreCrop | None = None

    def __getitem__(self, position: int) -> Batch:
        whole = super().__getitem__(position)
        return whole if self.crop is None else Batch(*self.crop(whole.images, whole.labels))

    def usual_shapes(self) -> list[Size]:
        """Heights and widths of some of them, as they are scored."""
        return usual_shapes(self.split) if self.crop is None else [(self.crop.size, self.crop.size)]

    def labelled_channels(self, num_classes: int) -> set[int]:
        """Which of the channels these masks label."""
        channels = range(num_classes)
        return set(channels if self.labelled is None else self.labelled).intersection(channels)

    def labels_all(self, num_classes: int) -> bool:
        """Whether these masks label every channel."""
        return len(self.labelled_channels(num_classes)) == num_classes

    def counted_as(self, num_classes: int) -> Tensor:
        """(C,) the channel that a prediction of each channel counts as."""
        channels = torch.arange(num_classes)
        if self.labelled is None:
            return channels
        return channels.where(torch.isin(channels, torch.tensor(self.labelled)), BACKGROUND)


def group_by_size(samples: Sequence[Batch]) -> list[Batch]:
    """One batch for each size among the samples, so that no image is padded or resized."""
    groups: dict[torch.Size, list[Batch]] = {}
    for sample in samples:
        groups.setdefault(sample.labels.shape, []).append(sample)
    return [stack(group) for group in groups.values()]
