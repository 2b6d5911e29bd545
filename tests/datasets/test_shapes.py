from pathlib import Path

import pytest
import torch

from incseg.curriculum.rules import training_images
from incseg.datasets import open_source
from incseg.datasets.scan import class_presence
from incseg.datasets.shapes import CLASSES, draw
from incseg.errors import InputError
from incseg.protocol import Setting, steps


def test_a_seed_draws_the_same_image_always_and_another_seed_another() -> None:
    image, mask = draw(5)
    again, same = draw(5)
    assert torch.equal(image, again)
    assert torch.equal(mask, same)
    assert not torch.equal(image, draw(6)[0])
    assert image.dtype == mask.dtype == torch.uint8
    assert image.shape == (3, *mask.shape)


def test_masks_hold_known_classes_and_an_ignored_outline() -> None:
    ids = {int(i) for seed in range(40) for i in draw(seed)[1].unique()}
    assert ids == {*range(len(CLASSES)), 255}


def test_old_and_future_classes_lie_in_the_images_of_every_step() -> None:
    source = open_source("shapes", None)
    presence = class_presence(source.train, source.classes)
    for step in steps("4-2", len(CLASSES) - 1):
        shown = [presence[i] for i in training_images(presence, step, Setting.OVERLAPPED, range(len(CLASSES)))]
        assert len(shown) > 200
        for other in (*step.old, *step.future):
            assert sum(other in ids for ids in shown) > 10


def test_a_folder_for_the_embedded_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'shapes' is embedded and has no folder: leave --data-root out"):
        open_source("shapes", tmp_path)


def test_train_and_val_differ() -> None:
    source = open_source("shapes", None)
    assert not torch.equal(source.train.image(0), source.val.image(0))
