"""Batches: which images make up each, how they are augmented, and what is replayed beside them."""

from incseg.loading.addresses import Address, BatchAddresses, batches_per_epoch
from incseg.loading.batches import (
    ScaledImages,
    ScoredImages,
    TrainingImages,
    TrainingSet,
    WholeImages,
    group_by_size,
    stack,
)
from incseg.loading.generated import PictureFolder, open_generator
from incseg.loading.loaders import device_loader, none_killed, training_loader, whole_loader
from incseg.loading.replay import ClassPictures, KeptImages, Replay, ReplayedImages
from incseg.loading.transforms import CentreCrop, ShortSide, TrainingTransform

__all__ = [
    "Address",
    "BatchAddresses",
    "CentreCrop",
    "ClassPictures",
    "KeptImages",
    "PictureFolder",
    "Replay",
    "ReplayedImages",
    "ScaledImages",
    "ScoredImages",
    "ShortSide",
    "TrainingImages",
    "TrainingSet",
    "TrainingTransform",
    "WholeImages",
    "batches_per_epoch",
    "device_loader",
    "group_by_size",
    "none_killed",
    "open_generator",
    "stack",
    "training_loader",
    "whole_loader",
]
