"""Replay: images of old classes that a step sees beside its own."""

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
from incseg.loading.addresses import Address
from incseg.loading.transforms import TrainingTransform, relabelled
from incseg.protocol import IGNORE
from incseg.sizes import reduced_size, resize_images


@dataclass(frozen=True)
class ReplayedImages(Dataset[Batch], ABC):
    """Images to replay; ``channels`` holds, for each, the old class it was kept for."""

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
        """(3, H, W) uint8 and (H, W) uint8 channels."""


@dataclass(frozen=True)
class KeptImages(ReplayedImages):
    """Training images of earlier steps, each with the labels of the step in which it was kept."""

    split: Split
    indices: Sequence[int]
    tables: Sequence[Tensor]

    def pair(self, position: int) -> tuple[Tensor, Tensor]:
        """The image, and its ground truth as that step saw it."""
        index = self.indices[position]
        return self.split.image(index), relabelled(self.split.mask(index), self.tables[position])


@dataclass(frozen=True)
class ClassPictures(ReplayedImages):
    """Picture files of old classes, without masks."""

    files: Sequence[Path]
    longest_side: int | None = None

    def pair(self, position: int) -> tuple[Tensor, Tensor]:
        """The picture, with every pixel ignored: a part of the method may label it."""
        image = image_tensor(self.files[position])
        image = resize_images(image[None], reduced_size((image.shape[1], image.shape[2]), self.longest_side))[0]
        return image, torch.full(image.shape[-2:], IGNORE, dtype=torch.uint8)


@dataclass(frozen=True)
class Replay:
    """The images that a step replays, in half of every batch, or with ``alternate`` in every other batch."""

    images: ReplayedImages
    alternate: bool = False
