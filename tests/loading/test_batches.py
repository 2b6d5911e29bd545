from pathlib import Path

import pytest
import torch

from incseg.batch import Batch
from incseg.datasets import open_source
from incseg.errors import InputError
from incseg.loading import (
    BatchAddresses,
    ScoredImages,
    TrainingImages,
    TrainingSet,
    TrainingTransform,
    group_by_size,
    training_loader,
    whole_loader,
)
from samples import write_folder


def images(root: Path) -> TrainingImages:
    return TrainingImages(open_source("folder", root).train, range(10), torch.arange(256), TrainingTransform(32))


def batches(root: Path, workers: int = 0) -> list[Batch]:
    addresses = BatchAddresses(images=10, batch_size=4, epochs=3, seed=7)
    return list(training_loader(TrainingSet(images(root)), addresses, workers, pin_memory=False))


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
        for batches in whole_loader(scored, 3, 0, range(rank, len(scored), world_size))
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


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_breaks_during_training_is_named_in_one_sentence(tmp_path: Path, workers: int) -> None:
    root = write_folder(tmp_path / "data", train=2, val=1, size=32)
    scored = ScoredImages(open_source("folder", root).val, [0], torch.arange(256))
    broken = root / "images" / "002.png"
    broken.write_bytes(b"")
    with pytest.raises(InputError) as caught:
        list(whole_loader(scored, 1, workers))
    assert str(caught.value) == f"the image {broken} cannot be read: it is not an image file."


def test_a_class_that_the_masks_do_not_label_counts_as_background(tiny_folder: Path) -> None:
    split, table = open_source("folder", tiny_folder).val, torch.arange(256)
    assert ScoredImages(split, [0], table, labelled=[0, 1, 3]).counted_as(5).tolist() == [0, 1, 0, 3, 0]
    assert ScoredImages(split, [0], table).counted_as(5).tolist() == [0, 1, 2, 3, 4]
