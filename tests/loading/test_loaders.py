"""Images that were decoded before, in RAM or on a device: the same batches as from files."""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from incseg.batch import Batch
from incseg.datasets import Split, open_source
from incseg.errors import InputError, TrainingError
from incseg.loading import (
    BatchAddresses,
    KeptImages,
    Replay,
    TrainingImages,
    TrainingSet,
    TrainingTransform,
    WholeImages,
    device_loader,
    none_killed,
    training_loader,
    whole_loader,
)
from incseg.loading.decoded import DecodedImages, KeptSplit, Measured
from incseg.loading.loaders import BATCHES_AT_ONCE
from incseg.loading.resampling import BatchCutter
from samples import write_folder

PATIENCE = 60  # seconds
CPU = torch.device("cpu")
SIZE = 32
Loader = Callable[[TrainingSet, BatchAddresses], Iterator[Batch]]


def training_set(split: Split, replays: bool = False) -> TrainingSet:
    transform = TrainingTransform(SIZE)
    own = TrainingImages(split, [0, 2, 4, 6, 8, 1, 3, 5, 7, 9], torch.arange(256), transform)
    tables = [torch.arange(256).flip(0), torch.full((256,), 3)]
    return TrainingSet(own, Replay(KeptImages([1, 2], transform, split, [10, 11], tables)) if replays else None)


def decoded_in(split: Split) -> DecodedImages:
    return Measured.of(split, range(12)).decoded(CPU)


def from_ram(images: TrainingSet, addresses: BatchAddresses) -> Iterator[Batch]:
    kept = KeptSplit(images.own.split, decoded_in(images.own.split))
    return training_loader(images.reading(kept), addresses, workers=0, pin_memory=False)


def cut_from(images: TrainingSet, decoded: DecodedImages) -> Callable[[Tensor], Batch]:
    return partial(BatchCutter(decoded, SIZE), tables=images.tables)


def from_device(images: TrainingSet, addresses: BatchAddresses) -> Iterator[Batch]:
    decoded = decoded_in(images.own.split)
    return device_loader(images, decoded, cut_from(images, decoded), addresses)


def test_replayed_images_of_another_split_stay_what_they_are(tiny_folder: Path) -> None:
    source = open_source("folder", tiny_folder)
    others = KeptImages([1, 2], TrainingTransform(SIZE), source.val, [0, 1], [torch.arange(256)] * 2)
    images = TrainingSet(training_set(source.train).own, Replay(others))
    assert not images.is_of_one_split, "a device cuts crops from one split only"
    kept = images.reading(KeptSplit(source.train, decoded_in(source.train)))
    for position in (3, 10, 11):
        assert torch.equal(kept[position, 5].images, images[position, 5].images)


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("load", [from_ram, from_device])
def test_kept_images_give_the_batches_that_files_give(load: Loader, replays: bool, tiny_folder: Path) -> None:
    images = training_set(open_source("folder", tiny_folder).train, replays)
    replayed = images.shares[1]
    for start, rank, world_size in ((0, 0, 1), (3, 1, 2)):
        addresses = BatchAddresses(images=10, batch_size=4, epochs=2, seed=7, replayed=replayed, start=start, rank=rank,
                                   world_size=world_size)  # fmt: skip
        files = [batch.to(CPU) for batch in training_loader(images, addresses, workers=0, pin_memory=False)]
        kept = [batch.to(CPU) for batch in load(images, addresses)]
        assert len(files) == len(kept) == len(addresses)
        for one, other in zip(files, kept, strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
            assert one.replayed is not None
            assert other.replayed is not None
            assert torch.equal(one.replayed, other.replayed)


def test_weights_of_balanced_sampling_count(tiny_folder: Path) -> None:
    images = training_set(open_source("folder", tiny_folder).train)
    addresses = BatchAddresses(images=10, batch_size=4, epochs=1, seed=7, weights=(1.0, *(0.0,) * 9))
    first = images.own.split.mask(0).unique().tolist()
    for batch in from_device(images, addresses):
        assert set(batch.labels.unique().tolist()) <= set(first)


@pytest.mark.parametrize("broken", ["header", "pixels", "mask"])
def test_an_unreadable_image_is_replaced_as_when_reading_files(broken: str, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=12, val=1, size=48)
    split = open_source("folder", root).train
    path = root / ("masks" if broken == "mask" else "images") / "004.png"
    content = path.read_bytes()
    path.write_bytes(b"" if broken == "header" else content[: len(content) // 2])
    images, decoded = training_set(split), decoded_in(split)
    addresses = BatchAddresses(images=10, batch_size=5, epochs=2, seed=7)
    told: list[str] = []
    kept = list(device_loader(images, decoded, cut_from(images, decoded), addresses, told.append))
    noted: list[str] = []
    files = list(training_loader(images, addresses, 0, pin_memory=False, note=noted.append))
    assert told
    assert set(told) == set(noted)
    assert all(torch.equal(one.images, other.images) for one, other in zip(kept, files, strict=True))
    with pytest.raises(InputError, match=r"004\.png cannot be read"):
        list(device_loader(images, decoded, cut_from(images, decoded), addresses))
    with pytest.raises(InputError, match=r"004\.png cannot be read"):
        KeptSplit(split, decoded).image(4)


@pytest.mark.parametrize("in_process", [False, True])
def test_crops_drawn_for_several_batches_at_once_fill_every_batch(tiny_folder: Path, in_process: bool) -> None:
    images = training_set(open_source("folder", tiny_folder).train)
    decoded = decoded_in(images.own.split)
    addresses = BatchAddresses(images=10, batch_size=4, epochs=20, seed=7, start=3)
    several = list(device_loader(images, decoded, cut_from(images, decoded), addresses, in_process=in_process))
    assert len(several) == len(addresses) > BATCHES_AT_ONCE
    for one, other in zip(several, training_loader(images, addresses, workers=0, pin_memory=False), strict=True):
        assert torch.equal(one.images, other.images)


class Deadly(Dataset[Batch]):
    """Whoever reads it is killed, as by a system without memory."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Batch:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError(index)


def test_a_killed_loading_process_is_told_in_a_sentence() -> None:
    with pytest.raises(TrainingError, match=r"was killed.*--data\.workers"):
        next(whole_loader(cast(WholeImages, Deadly()), batch_size=1, workers=1))


class DeadlyLater(Deadly):
    """The first image is read; whoever reads the second is killed while the first is used."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Batch:
        if index == 0:
            return Batch(torch.zeros(3, 32, 32), torch.zeros(32, 32))
        time.sleep(0.3)
        return super().__getitem__(index)


def test_a_loading_process_that_is_killed_while_its_batches_are_used_is_told_in_the_same_sentence() -> None:
    batches = whole_loader(cast(WholeImages, DeadlyLater()), batch_size=1, workers=1)
    next(batches)
    assert isinstance(batches, Generator)
    with pytest.raises(TrainingError, match=r"was killed.*--data\.workers"), none_killed():
        time.sleep(PATIENCE)
    batches.close()


class Faulty(Deadly):
    """Whoever reads it fails, by a mistake in a program."""

    def __getitem__(self, index: int) -> Batch:
        raise RuntimeError("a mistake")


def test_what_fails_in_a_loading_process_is_not_called_killed() -> None:
    with pytest.raises(RuntimeError, match="a mistake"):
        next(whole_loader(cast(WholeImages, Faulty()), batch_size=1, workers=1))
    assert not multiprocessing.active_children(), "Python would wait for them at its end, and they for Python"


class OfThisProcess:
    """Garbage, since it refers to itself; when it is collected, it says in which process."""

    def __init__(self, place: Path):
        self.place, self.itself = place, self

    def __del__(self) -> None:
        (self.place / str(os.getpid())).touch()


class Collecting(Dataset[Batch]):
    """Whoever reads it collects garbage."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Batch:
        gc.collect()
        return Batch(torch.zeros(1, 3, 32, 32), torch.zeros(1, 32, 32))


def test_what_a_process_leaves_behind_is_not_collected_in_those_that_load_for_it(tmp_path: Path) -> None:
    """It may lie on a GPU, which a copy of the process cannot use."""
    gc.collect()
    gc.disable()  # it must still be there when they begin
    try:
        OfThisProcess(tmp_path)
        list(whole_loader(cast(WholeImages, Collecting()), batch_size=1, workers=1))
    finally:
        gc.enable()
    gc.collect()
    assert [file.name for file in tmp_path.iterdir()] == [str(os.getpid())]
