"""Batches: training as an endless stream that is a pure function of its address, scoring at each image's own size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from incseg.batch import Batch
from incseg.data.source import Split
from incseg.data.transforms import TrainingTransform
from incseg.errors import InputError
from incseg.protocol import BACKGROUND
from incseg.seeding import seed_from

Item = TypeVar("Item")
Address = tuple[int, int]  # (which image, the seed of its augmentation)


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
        return Batch(image, self.table[mask.long()])


@dataclass(frozen=True)
class BatchAddresses(Sampler[list[Address]]):
    """Which images make up each batch of a step: an own shuffle per epoch, cut into whole batches.

    Batch i depends on (seed, i) only, not on what was drawn before, so a run can start at any i. With several
    processes, each takes its share of every global batch.
    """

    images: int
    batch_size: int
    iterations: int
    seed: int
    start: int = 0
    rank: int = 0
    world_size: int = 1

    def __len__(self) -> int:
        return self.iterations - self.start

    def __iter__(self) -> Iterator[list[Address]]:
        per_epoch = batches_per_epoch(self.images, self.batch_size)
        shuffled_epoch, order = -1, torch.empty(0)
        for iteration in range(self.start, self.iterations):
            epoch, batch = divmod(iteration, per_epoch)
            if epoch != shuffled_epoch:
                shuffled_epoch, order = epoch, self._shuffle(epoch)
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size].tolist()
            addresses = [(i, seed_from(self.seed, "augment", iteration, slot)) for slot, i in enumerate(chosen)]
            yield addresses[self.rank :: self.world_size]

    def _shuffle(self, epoch: int) -> Tensor:
        """A permutation of the images; a step with fewer images than a batch repeats them until it is full."""
        generator = torch.Generator().manual_seed(seed_from(self.seed, "shuffle", epoch))
        rounds = max(1, -(-self.batch_size // self.images))
        return torch.cat([torch.randperm(self.images, generator=generator) for _ in range(rounds)])


def batches_per_epoch(images: int, batch_size: int) -> int:
    """Whole batches only, as in the reference recipes, but at least one."""
    return max(1, images // batch_size)


def stack(samples: Sequence[Batch]) -> Batch:
    """Samples of one size as a batch."""
    return Batch(torch.stack([s.images for s in samples]), torch.stack([s.labels for s in samples]))


def training_loader(
    images: TrainingImages, addresses: BatchAddresses, workers: int, pin_memory: bool
) -> Iterable[Batch]:
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
    """Validation images at their own size, under the labels they are scored with.

    ``labelled`` are the channels that their masks show wherever they are; None: all. A prediction of any other channel
    cannot be judged on these images, and counts as background, as their masks have it.
    """

    split: Split
    indices: Sequence[int]
    table: Tensor
    labelled: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Batch:
        index = self.indices[position]
        return Batch(self.split.image(index), self.table[self.split.mask(index).long()])

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
