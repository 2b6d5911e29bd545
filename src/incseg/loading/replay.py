"""Replay: images that a step sees beside its own, each in memory of an old class."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from incseg.batch import Batch
from incseg.datasets.file_split import image_tensor
from incseg.datasets.source import Split
from incseg.loading.transforms import TrainingTransform
from incseg.protocol import IGNORE

Address = tuple[int, int]  # (which image, the seed of its augmentation)


@dataclass(frozen=True)
class ReplayedImages(Dataset[Batch], ABC):
    """Images in memory of classes: ``channels`` says, image by image, of which."""

    channels: Sequence[int]
    transform: TrainingTransform

    def __len__(self) -> int:
        return len(self.channels)

    def __getitem__(self, address: Address) -> Batch:
        position, seed = address
        image, labels = self.transform(*self.pair(position), seed)
        return Batch(image, labels, torch.tensor(self.channels[position]))

    @abstractmethod
    def pair(self, position: int) -> tuple[Tensor, Tensor]:
        """(3, H, W) uint8 and (H, W) int64 channels."""


@dataclass(frozen=True)
class KeptImages(ReplayedImages):
    """Training images of earlier steps, each under the labels of the step in which it was kept."""

    split: Split
    indices: Sequence[int]
    tables: Sequence[Tensor]

    def pair(self, position: int) -> tuple[Tensor, Tensor]:
        """The image with its ground truth of that time."""
        index = self.indices[position]
        return self.split.image(index), self.tables[position][self.split.mask(index).long()]


@dataclass(frozen=True)
class ClassPictures(ReplayedImages):
    """Picture files of classes, without masks: nothing in them is labelled."""

    files: Sequence[Path]

    def pair(self, position: int) -> tuple[Tensor, Tensor]:
        """The picture, all of it ignored until someone labels it."""
        image = image_tensor(self.files[position])
        return image, torch.full(image.shape[-2:], IGNORE, dtype=torch.int64)


@dataclass(frozen=True)
class Replay:
    """What a step replays, and how: in half of every batch, or in every other batch."""

    images: ReplayedImages
    alternate: bool = False
