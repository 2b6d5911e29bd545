"""Images that were decoded before, in RAM or on a device: the same batches as from files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from incseg.batch import Batch
from incseg.datasets import Split, open_source
from incseg.errors import InputError
from incseg.loading import (
    BatchAddresses,
    KeptImages,
    Replay,
    TrainingImages,
    TrainingSet,
    TrainingTransform,
    device_loader,
    training_loader,
)
from incseg.loading.decoded import DecodedImages, KeptSplit, Measured
from incseg.loading.loaders import AHEAD, ahead
from incseg.loading.resampling import BatchCutter
from samples import write_folder

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


def from_device(images: TrainingSet, addresses: BatchAddresses) -> Iterator[Batch]:
    decoded = decoded_in(images.own.split)
    return device_loader(images, decoded, BatchCutter(decoded, SIZE), addresses)


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
    kept = list(device_loader(images, decoded, BatchCutter(decoded, SIZE), addresses, told.append))
    noted: list[str] = []
    files = list(training_loader(images, addresses, 0, pin_memory=False, note=noted.append))
    assert told
    assert set(told) == set(noted)
    assert all(torch.equal(one.images, other.images) for one, other in zip(kept, files, strict=True))
    with pytest.raises(InputError, match=r"004\.png cannot be read"):
        list(device_loader(images, decoded, BatchCutter(decoded, SIZE), addresses))
    with pytest.raises(InputError, match=r"004\.png cannot be read"):
        KeptSplit(split, decoded).image(4)


def test_what_a_thread_prepares_ahead_arrives_in_order_with_its_errors() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(10):
            made.append(number)
            yield number
        raise InputError("no more")

    iterator = ahead(numbers(), CPU)
    assert [next(iterator) for _ in range(10)] == list(range(10))
    with pytest.raises(InputError, match="no more"):
        next(iterator)
    made.clear()
    iterator = ahead(numbers(), CPU)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert len(made) <= AHEAD + 1
