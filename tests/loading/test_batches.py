from pathlib import Path

import pytest
import torch

from incseg.batch import Batch
from incseg.datasets import open_source
from incseg.loading.batches import (
    BatchAddresses,
    ScoredImages,
    TrainingImages,
    TrainingSet,
    group_by_size,
    scoring_loader,
    training_loader,
)
from incseg.loading.transforms import TrainingTransform


def images(root: Path) -> TrainingImages:
    return TrainingImages(open_source("folder", root).train, range(10), torch.arange(256), TrainingTransform(32))


def batches(root: Path, workers: int = 0) -> list[Batch]:
    addresses = BatchAddresses(images=10, batch_size=4, epochs=3, seed=7)
    return list(training_loader(TrainingSet(images(root)), addresses, workers, pin_memory=False))


def test_an_epoch_shows_whole_batches_of_different_images() -> None:
    drawn = list(BatchAddresses(images=10, batch_size=4, epochs=2, seed=1))
    assert len(drawn) == 4
    for epoch in (drawn[:2], drawn[2:]):
        positions = [position for batch in epoch for position, _ in batch]
        assert len(set(positions)) == 8
    assert drawn[:2] != drawn[2:]


def test_a_stream_can_start_anywhere() -> None:
    whole = list(BatchAddresses(images=10, batch_size=4, epochs=5, seed=1))
    for start in range(10):
        assert list(BatchAddresses(images=10, batch_size=4, epochs=5, seed=1, start=start)) == whole[start:]


def test_processes_share_each_global_batch() -> None:
    whole = list(BatchAddresses(images=10, batch_size=4, epochs=3, seed=1))
    shares = [list(BatchAddresses(images=10, batch_size=4, epochs=3, seed=1, rank=r, world_size=2)) for r in (0, 1)]
    for batch, first, second in zip(whole, *shares, strict=True):
        assert sorted(batch) == sorted(first + second)
        assert len(first) == len(second) == 2


def test_fewer_images_than_a_batch_are_repeated() -> None:
    (batch,) = BatchAddresses(images=3, batch_size=8, epochs=1, seed=1)
    assert len(batch) == 8
    assert {position for position, _ in batch} == {0, 1, 2}


def origins(batch: list[tuple[int, int]]) -> str:
    return "".join("own " if position < 10 else "old " for position, _ in batch)


def test_replayed_images_fill_half_of_every_batch_and_an_epoch_still_shows_every_own_image() -> None:
    addresses = BatchAddresses(images=10, batch_size=4, epochs=2, seed=1, replayed=3)
    drawn = list(addresses)
    assert addresses.per_epoch == 5
    assert [origins(batch) for batch in drawn] == ["own own old old "] * 10
    for epoch in (drawn[:5], drawn[5:]):
        assert {position for batch in epoch for position, _ in batch} == {*range(10), 10, 11, 12}


def test_replayed_images_may_take_turns_with_the_steps_own() -> None:
    addresses = BatchAddresses(images=10, batch_size=4, epochs=1, seed=1, replayed=3, alternate=True)
    assert [origins(batch) for batch in addresses] == ["own own own own ", "old old old old "] * 2


@pytest.mark.parametrize("alternate", [False, True])
def test_a_stream_with_replay_can_start_anywhere_and_be_shared(alternate: bool) -> None:
    def stream(**place: int) -> list[list[tuple[int, int]]]:
        return list(BatchAddresses(10, 4, epochs=2, seed=1, replayed=3, alternate=alternate, **place))

    whole = stream()
    for start in range(len(whole) + 1):
        assert stream(start=start) == whole[start:]
    for batch, first, second in zip(whole, stream(rank=0, world_size=2), stream(rank=1, world_size=2), strict=True):
        assert sorted(batch) == sorted(first + second)
        assert len(first) == len(second) == 2


def test_batches_do_not_depend_on_the_number_of_workers(tiny_folder: Path) -> None:
    for alone, helped in zip(batches(tiny_folder), batches(tiny_folder, workers=2), strict=True):
        assert torch.equal(alone.images, helped.images)
        assert torch.equal(alone.labels, helped.labels)


def test_augmentation_leaves_the_global_random_state_alone_and_never_mixes_ids(tiny_folder: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = batches(tiny_folder)[0]
    assert torch.equal(before, torch.get_rng_state())
    assert first.images.shape == (4, 3, 32, 32)
    assert first.images.dtype == torch.uint8
    assert set(first.labels.unique().tolist()) <= {0, 1, 2, 3, 4, 255}


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_image_is_scored_exactly_once(tiny_folder: Path, world_size: int) -> None:
    source = open_source("folder", tiny_folder)
    scored = ScoredImages(source.val, range(len(source.val)), torch.arange(256))
    found = [
        image
        for rank in range(world_size)
        for batches in scoring_loader(scored, 3, 0, rank, world_size)
        for batch in batches
        for image in batch.images
    ]
    assert len(found) == len(source.val)
    expected = {source.val.image(i).numpy().tobytes() for i in range(len(source.val))}
    assert {image.numpy().tobytes() for image in found} == expected


def test_images_of_different_sizes_are_grouped_not_padded() -> None:
    def sample(height: int) -> Batch:
        return Batch(torch.zeros(3, height, 8, dtype=torch.uint8), torch.zeros(height, 8, dtype=torch.int64))

    groups = group_by_size([sample(4), sample(6), sample(4)])
    assert [tuple(g.images.shape) for g in groups] == [(2, 3, 4, 8), (1, 3, 6, 8)]
