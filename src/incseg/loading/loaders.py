"""Loaders: the batches of a step, and whole images; read by processes, or cut on a device that has the images."""

import gc
import math
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from incseg.batch import Batch
from incseg.errors import InputError, Note, TrainingError, refuse
from incseg.loading.addresses import Address, BatchAddresses
from incseg.loading.batches import TrainingSet, WholeImages, group_by_size, stack
from incseg.loading.decoded import DecodedImages, Layout
from incseg.loading.resampling import Cut
from incseg.loading.transforms import draw_crop
from incseg.system_signals import REQUESTS_TO_STOP

Key = TypeVar("Key")
Sample = TypeVar("Sample")
Collated = TypeVar("Collated")
MOST_ATTEMPTS = 100  # so many unreadable images in a row mean that more is wrong than an image
BATCHES_AT_ONCE = 32  # whose crops are drawn together
DEATH = re.compile(r"DataLoader worker \(pid")  # how PyTorch begins to say that one is gone, whatever the reason


@dataclass(frozen=True)
class Attempts(Dataset[tuple[Sample | None, tuple[str, ...]]], Generic[Key, Sample]):
    """Images of which those that cannot be read are replaced by the first alternative that can.

    What failed travels with the image, because it may be loaded in another process.
    """

    images: Dataset[Sample]
    alternatives: Callable[[Key], Iterable[Key]]

    def __getitem__(self, key: Any) -> tuple[Sample | None, tuple[str, ...]]:
        """The sample, None if there is none that can be read; and a sentence for each failure."""
        failures: list[str] = []
        for other in islice(self.alternatives(key), MOST_ATTEMPTS):
            try:
                return self.images[other], tuple(failures)
            except InputError as error:
                failures.append(str(error))
        return None, tuple(failures)


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
    attempts = Attempts(images, _only if note is None else images.from_here)
    return _complete(_batch_loader(attempts, addresses, stack, workers, pin_memory), note)


def device_loader(
    images: TrainingSet,
    decoded: DecodedImages,
    cut: Callable[[Tensor], Batch],
    addresses: BatchAddresses,
    note: Note | None = None,
    *,
    in_process: bool = False,
) -> Iterator[Batch]:
    """The same batches to the bit, cut on the device that has the decoded images; the host only says what to cut.

    Args:
        images: the training set.
        decoded: its images.
        cut: (B, 7) int64 on the device, a :class:`Cut` per image → the batch.
        addresses: which images make up each batch.
        note: takes what is said of images that cannot be read.
        in_process: draw the crops in another process: it costs the host a millisecond per batch.
    """
    attempts = Attempts(Cuts(images, decoded.layout), _only if note is None else images.from_here)
    device, together = decoded.pixels.device, SeveralBatches(addresses, BATCHES_AT_ONCE)
    loader = _batch_loader(attempts, together, torch.tensor, int(in_process), pin_memory=device.type == "cuda")
    for cuts in _complete(loader, note):
        for one in cuts.to(device, non_blocking=True).split(addresses.share):
            yield cut(one)


@dataclass(frozen=True)
class Cuts(Dataset[Cut[int]]):
    """Where the crops of a training set lie among its decoded images."""

    images: TrainingSet
    layout: Layout

    def __getitem__(self, address: Address) -> Cut[int]:
        position, seed = address
        number, table, replayed = self.images.origin(position)
        offset, height, width = self.layout.place(number)
        crop = draw_crop((height, width), seed)
        start = offset + crop.top * width + crop.left
        return Cut(start, width, crop.height, crop.width, int(crop.flipped), table, replayed)


@dataclass(frozen=True)
class SeveralBatches(Sampler[list[Address]]):
    """The addresses of several batches at once: what is drawn for one is too little to be sent on its own."""

    addresses: BatchAddresses
    number: int

    def __len__(self) -> int:
        return math.ceil(len(self.addresses) / self.number)

    def __iter__(self) -> Iterator[list[Address]]:
        batches = iter(self.addresses)
        while several := list(islice(batches, self.number)):
            yield list(chain.from_iterable(several))


def whole_loader(
    images: WholeImages, batch_size: int, workers: int, share: Sequence[int] | None = None, note: Note | None = None
) -> Iterator[list[Batch]]:
    """Each image of a share exactly once, by default of all: a sampler that pads the last batch would count some twice.

    An image that cannot be read is refused, or left to ``note`` and left out.
    """
    share = range(len(images)) if share is None else share
    loader: Iterable[tuple[list[Batch], list[str]]] = DataLoader(
        Attempts(images, _only),
        batch_size=batch_size,
        sampler=share,
        num_workers=min(workers, -(-len(share) // batch_size)),  # one without a batch would only cost its start
        collate_fn=_grouped,
        worker_init_fn=_begin_process,
    )
    for batches, failures in _delivered(loader):
        _pass_on(failures, note)
        yield batches


def _batch_loader(
    attempts: Attempts[Address, Sample],
    addresses: BatchAddresses | SeveralBatches,
    collate: Callable[[list[Sample]], Collated],
    workers: int,
    pin_memory: bool,
) -> Iterable[tuple[Collated | None, list[str]]]:
    return DataLoader(
        attempts,
        batch_sampler=addresses,
        num_workers=min(workers, len(addresses)),
        collate_fn=partial(_collated, collate),
        pin_memory=pin_memory,
        generator=torch.Generator(),
        worker_init_fn=_begin_process,
    )


def _complete(loader: Iterable[tuple[Collated | None, list[str]]], note: Note | None) -> Iterator[Collated]:
    """The batches of a loader, once what could not be read is told."""
    for batch, failures in _delivered(loader):
        _pass_on(failures, note)
        if batch is None:
            raise InputError(f"{len(failures)} images of this step in a row cannot be read; the last: {failures[-1]}")
        yield batch


def _delivered(loader: Iterable[Collated]) -> Iterator[Collated]:
    """What the processes of a loader read.

    They begin as copies of this process, and what it has on a GPU is not theirs to free: nothing that exists when they
    begin is collected in them.
    """
    gc.freeze()
    try:
        delivered = iter(loader)
    finally:
        gc.unfreeze()
    try:
        with none_killed():
            yield from delivered
    finally:
        # An error keeps the iterator alive, and Python would wait for its processes at the end: they ignore SIGTERM.
        getattr(delivered, "_shutdown_workers", lambda: None)()


@contextmanager
def none_killed() -> Iterator[None]:
    """Say in a sentence that a loading process was killed.

    PyTorch says so where a batch is waited for, or wherever the program is when the system tells it: whoever computes
    with the batches does so inside too.
    """
    try:
        yield
    except RuntimeError as error:
        if not DEATH.match(str(error)):
            raise
        raise TrainingError(
            "a process that loads images was killed, often because the memory is full: try again with fewer of them "
            "(--data.workers 1, or 0 for none); a run goes on from its last checkpoint."
        ) from error


def _collated(
    collate: Callable[[list[Sample]], Collated], samples: Sequence[tuple[Sample | None, tuple[str, ...]]]
) -> tuple[Collated | None, list[str]]:
    """A batch, or None if for one of its images there is none that can be read."""
    found, failures = _apart(samples)
    return collate(found) if len(found) == len(samples) else None, failures


def _grouped(samples: Sequence[tuple[Batch | None, tuple[str, ...]]]) -> tuple[list[Batch], list[str]]:
    batches, failures = _apart(samples)
    return group_by_size(batches), failures


def _apart(samples: Sequence[tuple[Sample | None, tuple[str, ...]]]) -> tuple[list[Sample], list[str]]:
    return [sample for sample, _ in samples if sample is not None], [text for _, texts in samples for text in texts]


def _pass_on(failures: Iterable[str], note: Note | None) -> None:
    for sentence in failures:
        (note or refuse)(sentence)


def _begin_process(worker: int) -> None:  # noqa: ARG001
    """What a loading process must leave to its parent.

    A scheduler signals all processes of a job; the training process decides when these end.
    """
    for number in REQUESTS_TO_STOP:
        signal.signal(number, signal.SIG_IGN)
