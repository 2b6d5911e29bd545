"""Datasets and loaders: training batches by address, and validation images each at its own size."""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from incseg.batch import Batch
from incseg.datasets import Split
from incseg.datasets.scan import in_threads
from incseg.datasets.source import ReportProgress
from incseg.errors import InputError, Note, refuse
from incseg.loading.addresses import Address, BatchAddresses
from incseg.loading.replay import Replay
from incseg.loading.transforms import CentreCrop, TrainingTransform
from incseg.protocol import BACKGROUND, IGNORE

Key = TypeVar("Key")
Loaded = tuple[Batch | None, tuple[str, ...]]  # None: nothing could be read; and a sentence for each failure
MOST_ATTEMPTS = 100  # so many unreadable images in a row mean that more is wrong than an image
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

        def counts_of(position: int) -> Tensor:
            try:
                labels = self.table[self.split.mask(self.indices[position]).long()]
            except InputError as error:
                (note or refuse)(str(error))
                return torch.zeros(num_classes, dtype=torch.int64)
            return torch.bincount(labels.flatten(), minlength=IGNORE + 1)[:num_classes]

        found = in_threads(counts_of, len(self), report_progress)
        return sum(found, torch.zeros(num_classes, dtype=torch.int64)).double()

    def __getitem__(self, address: Address) -> Batch:
        position, seed = address
        index = self.indices[position]
        image, mask = self.transform(self.split.image(index), self.split.mask(index), seed)
        return Batch(image, self.table[mask.long()], NOT_REPLAYED)


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

    def from_here(self, address: Address) -> Iterator[Address]:
        """The address itself, then the images after it in its share, each of which can take its place."""
        position, seed = address
        own, replayed = self.shares
        first, number = (0, own) if position < own else (own, replayed)
        return ((first + (position - first + further) % number, seed) for further in range(number))


@dataclass(frozen=True)
class Attempts(Dataset[Loaded], Generic[Key]):
    """Images of which those that cannot be read are replaced by the first alternative that can.

    What failed travels with the image, because it may be loaded in another process.
    """

    images: Dataset[Batch]
    alternatives: Callable[[Key], Iterable[Key]]

    def __getitem__(self, key: Any) -> Loaded:
        failures: list[str] = []
        for other in islice(self.alternatives(key), MOST_ATTEMPTS):
            try:
                return self.images[other], tuple(failures)
            except InputError as error:
                failures.append(str(error))
        return None, tuple(failures)


def stack(samples: Sequence[Batch]) -> Batch:
    """Samples of one size as one batch."""
    images, labels, replayed = zip(*samples, strict=True)
    return Batch(torch.stack(images), torch.stack(labels), None if replayed[0] is None else torch.stack(replayed))


def _only(key: Key) -> list[Key]:
    """Without alternatives."""
    return [key]


def training_loader(
    images: TrainingSet, addresses: BatchAddresses, workers: int, pin_memory: bool, note: Note | None = None
) -> Iterator[Batch]:
    """The batches of a step, from ``addresses.start`` to its end.

    An image that cannot be read is refused, or left to ``note`` and replaced by the next one of the step: the batches
    depend on the seed and on the files, not on processes or on where a run was interrupted.
    """
    loader: Iterable[tuple[Batch | None, list[str]]] = DataLoader(
        Attempts(images, _only if note is None else images.from_here),
        batch_sampler=addresses,
        num_workers=workers,
        collate_fn=_stacked,
        pin_memory=pin_memory,
        generator=torch.Generator(),
        worker_init_fn=_leave_signals_to_the_parent,
    )
    for batch, failures in loader:
        _pass_on(failures, note)
        if batch is None:
            raise InputError(f"{len(failures)} images of this step in a row cannot be read; the last: {failures[-1]}")
        yield batch


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

    def labels_all(self, num_classes: int) -> bool:
        """Whether these masks label every channel."""
        return self.labelled is None or set(self.labelled) >= set(range(num_classes))

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


def whole_loader(
    images: WholeImages, batch_size: int, workers: int, rank: int = 0, world_size: int = 1, note: Note | None = None
) -> Iterator[list[Batch]]:
    """Every image exactly once over all processes: a sampler that pads the last batch would count some twice.

    An image that cannot be read is refused, or left to ``note`` and left out.
    """
    loader: Iterable[tuple[list[Batch], list[str]]] = DataLoader(
        Attempts(images, _only),
        batch_size=batch_size,
        sampler=range(rank, len(images), world_size),
        num_workers=workers,
        collate_fn=_grouped,
        worker_init_fn=_leave_signals_to_the_parent,
    )
    for batches, failures in loader:
        _pass_on(failures, note)
        yield batches


def _stacked(samples: Sequence[Loaded]) -> tuple[Batch | None, list[str]]:
    """A batch, or None if for one of its images there is none that can be read."""
    batches, failures = _apart(samples)
    return stack(batches) if len(batches) == len(samples) else None, failures


def _grouped(samples: Sequence[Loaded]) -> tuple[list[Batch], list[str]]:
    batches, failures = _apart(samples)
    return group_by_size(batches), failures


def _apart(samples: Sequence[Loaded]) -> tuple[list[Batch], list[str]]:
    return [batch for batch, _ in samples if batch is not None], [text for _, texts in samples for text in texts]


def _pass_on(failures: Iterable[str], note: Note | None) -> None:
    for sentence in failures:
        (note or refuse)(sentence)


def _leave_signals_to_the_parent(worker: int) -> None:  # noqa: ARG001
    """A scheduler signals all processes of a job; the training process decides when these end."""
    for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
        if hasattr(signal, name):  # Windows has no SIGUSR1
            signal.signal(getattr(signal, name), signal.SIG_IGN)
