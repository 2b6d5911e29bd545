"""Batches: training as an endless stream that is a pure function of its address, scoring at each image's own size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from incseg.batch import Batch
from incseg.datasets.source import Split
from incseg.errors import InputError
from incseg.loading.replay import Address, Replay
from incseg.loading.transforms import CentreCrop, TrainingTransform
from incseg.protocol import BACKGROUND
from incseg.seeding import seed_from

Item = TypeVar("Item")
OWN = torch.tensor(BACKGROUND)  # in no class' memory: an image of the step itself


@dataclass(frozen=True)
class TrainingImages(Dataset[Batch]):
    """The images of one step under the labels of that step."""

    split: Split
    indices: Sequence[int]
    table: Tensor
    transform: TrainingTransform

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, address: Address) -> Batch:
        position, seed = address
        index = self.indices[position]
        image, mask = self.transform(self.split.image(index), self.split.mask(index), seed)
        return Batch(image, self.table[mask.long()], OWN)


class TrainingSet(Dataset[Batch]):
    """The step's own images, and after them those a method replays."""

    def __init__(self, own: TrainingImages, replay: Replay | None = None):
        self.own, self.replay = own, replay

    @property
    def shares(self) -> tuple[int, int]:
        """How many images are the step's own, and how many are replayed."""
        return len(self.own), 0 if self.replay is None else len(self.replay.images)

    def __getitem__(self, address: Address) -> Batch:
        position, seed = address
        if self.replay is None or position < len(self.own):
            return self.own[position, seed]
        return self.replay.images[position - len(self.own), seed]


@dataclass(frozen=True)
class Stream:
    """An endless sequence of batches: an own shuffle of the images per epoch, cut into whole batches."""

    images: int
    size: int
    seed: int
    first: int = 0
    """The number of the first image; the others follow."""

    @property
    def per_epoch(self) -> int:
        """Batches until the images are shuffled anew."""
        return batches_per_epoch(self.images, self.size)

    def batch(self, number: int) -> list[int]:
        """The images of any batch."""
        epoch, place = divmod(number, self.per_epoch)
        chosen = _shuffle(self.images, self.size, seed_from(self.seed, "shuffle", epoch))
        return [self.first + i for i in chosen[place * self.size : (place + 1) * self.size].tolist()]


def batches_per_epoch(images: int, batch_size: int) -> int:
    """Whole batches only, as in the reference recipes, but at least one."""
    return max(1, images // batch_size)


@lru_cache(maxsize=4)
def _shuffle(images: int, at_least: int, seed: int) -> Tensor:
    """A permutation of the images; of fewer images than a batch, as many as it takes to fill one."""
    generator = torch.Generator().manual_seed(seed)
    rounds = max(1, -(-at_least // images))
    return torch.cat([torch.randperm(images, generator=generator) for _ in range(rounds)])


@dataclass(frozen=True)
class BatchAddresses(Sampler[list[Address]]):
    """Which images make up each batch of a step.

    Batch i depends on (seed, i) only, not on what was drawn before, so a run can start at any i. With several
    processes, each takes its share of every global batch. Replayed images fill half of every batch, or every other
    batch; an epoch is a pass over the step's own images in any case.
    """

    images: int
    batch_size: int
    epochs: int
    seed: int
    replayed: int = 0
    alternate: bool = False
    start: int = 0
    rank: int = 0
    world_size: int = 1

    @property
    def per_epoch(self) -> int:
        """Batches until every image of the step has been seen."""
        return self._own.per_epoch * (2 if self._takes_turns else 1)

    def __len__(self) -> int:
        return self.epochs * self.per_epoch - self.start

    def __iter__(self) -> Iterator[list[Address]]:
        for iteration in range(self.start, self.epochs * self.per_epoch):
            chosen = self._images_of(iteration)
            addresses = [(i, seed_from(self.seed, "augment", iteration, slot)) for slot, i in enumerate(chosen)]
            yield addresses[self.rank :: self.world_size]

    def _images_of(self, iteration: int) -> list[int]:
        if self._takes_turns:
            turn, replays = divmod(iteration, 2)
            return self._recalled.batch(turn) if replays else self._own.batch(turn)
        return self._own.batch(iteration) + (self._recalled.batch(iteration) if self.replayed else [])

    @property
    def _takes_turns(self) -> bool:
        return self.alternate and self.replayed > 0

    @property
    def _own(self) -> Stream:
        halved = self.replayed > 0 and not self.alternate
        return Stream(self.images, self.batch_size - (self.batch_size // 2 if halved else 0), self.seed)

    @property
    def _recalled(self) -> Stream:
        size = self.batch_size if self.alternate else self.batch_size // 2
        return Stream(self.replayed, size, seed_from(self.seed, "replay"), first=self.images)


def stack(samples: Sequence[Batch]) -> Batch:
    """Samples of one size as a batch."""
    images, labels, replayed = zip(*samples, strict=True)
    return Batch(torch.stack(images), torch.stack(labels), None if replayed[0] is None else torch.stack(replayed))


def training_loader(images: TrainingSet, addresses: BatchAddresses, workers: int, pin_memory: bool) -> Iterable[Batch]:
    """The stream of batches from ``addresses.start`` to the end of the step."""
    loader = DataLoader(
        images,
        batch_sampler=addresses,
        num_workers=workers,
        collate_fn=stack,
        pin_memory=pin_memory,
        generator=torch.Generator(),
    )
    return _in_our_words(loader)


@dataclass(frozen=True)
class ScoredImages(Dataset[Batch]):
    """Validation images under the labels they are scored with, at their own size or all cut alike.

    ``labelled`` are the channels that their masks show wherever they are; None: all. A prediction of any other channel
    cannot be judged on these images, and counts as background, as their masks have it.
    """

    split: Split
    indices: Sequence[int]
    table: Tensor
    labelled: Sequence[int] | None = None
    crop: CentreCrop | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Batch:
        index = self.indices[position]
        image, labels = self.split.image(index), self.table[self.split.mask(index).long()]
        return Batch(*((image, labels) if self.crop is None else self.crop(image, labels)))

    def judged_as(self, num_classes: int) -> Tensor:
        """(C,) the channel as which a prediction of each channel is judged."""
        channels = torch.arange(num_classes)
        if self.labelled is None:
            return channels
        return channels.where(torch.isin(channels, torch.tensor(self.labelled)), BACKGROUND)


def group_by_size(samples: Sequence[Batch]) -> list[Batch]:
    """Stack the samples that share a size, so that images need neither padding nor resizing to be batched."""
    groups: dict[torch.Size, list[Batch]] = {}
    for sample in samples:
        groups.setdefault(sample.labels.shape, []).append(sample)
    return [stack(group) for group in groups.values()]


def scoring_loader(
    images: ScoredImages, batch_size: int, workers: int, rank: int = 0, world_size: int = 1
) -> Iterable[list[Batch]]:
    """Every image exactly once over all processes: no padding, hence no image counted twice."""
    loader: Iterable[list[Batch]] = DataLoader(
        images,
        batch_size=batch_size,
        sampler=range(rank, len(images), world_size),
        num_workers=workers,
        collate_fn=group_by_size,
    )
    return _in_our_words(loader)


def _in_our_words(loader: Iterable[Item]) -> Iterator[Item]:
    """A worker's error arrives wrapped in its traceback; the person needs only its last line."""
    try:
        yield from loader
    except InputError as error:
        raise InputError(str(error).strip().splitlines()[-1].removeprefix("incseg.errors.InputError: ")) from None
