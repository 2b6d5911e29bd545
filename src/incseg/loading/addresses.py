"""Which images make up a batch: a pure function of the seed and the number of the batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.data import Sampler

from incseg.seeding import seed_from

Address = tuple[int, int]  # (position of an image in the training set, seed of its augmentation)


@dataclass(frozen=True)
class Stream:
    """An endless sequence of batches: every epoch shuffles the images anew and cuts them into whole batches."""

    images: int
    size: int
    seed: int
    first: int = 0
    """The position of the first image in the training set; the others follow it."""
    weights: tuple[float, ...] | None = None
    """How often each image is to be drawn, in proportion; None: each once per epoch."""

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return batches_per_epoch(self.images, self.size)

    def batch(self, number: int) -> list[int]:
        """The positions of the images in any batch."""
        epoch, place = divmod(number, self.per_epoch)
        chosen = _shuffle(self.images, self.size, seed_from(self.seed, "shuffle", epoch), self.weights)
        return [self.first + i for i in chosen[place * self.size : (place + 1) * self.size].tolist()]


def batches_per_epoch(images: int, batch_size: int) -> int:
    """Whole batches only, as in the reference code, but at least one."""
    return max(1, images // batch_size)


@lru_cache(maxsize=4)
def _shuffle(images: int, at_least: int, seed: int, weights: tuple[float, ...] | None) -> Tensor:
    """A permutation of the images; if they do not fill one batch, as many permutations as it takes.

    With weights as many draws as there are images, or as fill a batch, each by chance.
    """
    generator = torch.Generator().manual_seed(seed)
    if weights is not None:
        return torch.tensor(weights, dtype=torch.float64).multinomial(
            max(images, at_least), replacement=True, generator=generator
        )
    rounds = max(1, -(-at_least // images))
    return torch.cat([torch.randperm(images, generator=generator) for _ in range(rounds)])


@dataclass(frozen=True)
class BatchAddresses(Sampler[list[Address]]):
    """Which images make up each batch of a step.

    Batch i depends on (seed, i) only, not on what was drawn before, so a run can start at any i. With several
    processes, each takes its share of every global batch. Replayed images, which come after the step's own in the
    training set, fill half of every batch, or with ``alternate`` every other batch; an epoch is a pass over the step's
    own images in both cases. With ``weights`` the step's own images are drawn in proportion to these.
    """

    images: int
    batch_size: int
    epochs: int
    seed: int
    weights: tuple[float, ...] | None = None
    replayed: int = 0
    alternate: bool = False
    start: int = 0
    rank: int = 0
    world_size: int = 1

    @property
    def per_epoch(self) -> int:
        """Batches in a pass over the step's own images."""
        return self._own.per_epoch * (2 if self._alternates else 1)

    @property
    def share(self) -> int:
        """Images that this process has of every batch."""
        return self.batch_size // self.world_size

    def __len__(self) -> int:
        return self.epochs * self.per_epoch - self.start

    def __iter__(self) -> Iterator[list[Address]]:
        for iteration in range(self.start, self.epochs * self.per_epoch):
            chosen = self.images_of(iteration)
            addresses = [(i, seed_from(self.seed, "augment", iteration, slot)) for slot, i in enumerate(chosen)]
            yield addresses[self.rank :: self.world_size]

    def images_of(self, iteration: int) -> list[int]:
        """The positions of the images of a batch, over all processes."""
        if self._alternates:
            turn, is_replay = divmod(iteration, 2)
            return self._replayed.batch(turn) if is_replay else self._own.batch(turn)
        return self._own.batch(iteration) + (self._replayed.batch(iteration) if self.replayed else [])

    @property
    def _alternates(self) -> bool:
        return self.alternate and self.replayed > 0

    @property
    def _own(self) -> Stream:
        halved = self.replayed > 0 and not self.alternate
        size = self.batch_size - (self.batch_size // 2 if halved else 0)
        return Stream(self.images, size, self.seed, weights=self.weights)

    @property
    def _replayed(self) -> Stream:
        size = self.batch_size if self.alternate else self.batch_size // 2
        return Stream(self.replayed, size, seed_from(self.seed, "replay"), first=self.images)
