"""From images to statistics, with the labels that the head of the step before gives to the background."""

from dataclasses import replace

import torch

from incseg.batch import Batch
from incseg.deploy.model import Model
from incseg.models.closed_form import Statistics
from incseg.models.gather import Fit, feature_layout, gather


def test_the_background_is_never_given_to_a_class_that_was_not_seen_yet(tiny_model: Model) -> None:
    """Where all scores of known classes are negative, the 0 of a class without any cell is the highest."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=generator)
    labels = torch.zeros(2, 64, 64, dtype=torch.int64)
    labels[:, 32:] = 1
    segmenter = tiny_model.segmenter
    layout = feature_layout(segmenter, 2, width=32)
    known = gather(segmenter, Statistics.empty(layout).with_classes(torch.ones(2)), [Batch(images, labels)], Fit())
    doubting = replace(known, cross=-known.cross).with_classes(torch.ones(1))
    after = gather(segmenter, doubting, [Batch(images, torch.zeros_like(labels))], Fit())
    assert not after.cross[:, 2].any()
    assert (after.cross - doubting.cross)[:, :2].any()
