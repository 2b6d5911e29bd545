"""What a method may ask of the data: which classes a step's images show, and images to replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from incseg.data.curriculum import Curriculum
from incseg.data.replay import ClassPictures, KeptImages
from incseg.data.transforms import TrainingTransform


@dataclass(frozen=True)
class Library:
    """The data as a replaying part sees it, at one step."""

    curriculum: Curriculum
    crop_size: int

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of every channel, background first."""
        return self.curriculum.classes

    def shown(self, step: int) -> dict[int, frozenset[int]]:
        """Training image → the new classes it is labelled with, for the images of a step."""
        return self.curriculum.shown(self.curriculum.steps[step])

    def kept(self, images: Sequence[int], steps: Sequence[int], channels: Sequence[int]) -> KeptImages:
        """Training images of earlier steps under their labels of that time, each in memory of a class."""
        tables = [self.curriculum.training_table(self.curriculum.steps[index]) for index in steps]
        return KeptImages(channels, self._transform, self.curriculum.source.train, images, tables)

    def pictures(self, files: Sequence[Path], channels: Sequence[int]) -> ClassPictures:
        """Picture files without masks, each in memory of a class."""
        return ClassPictures(channels, self._transform, files)

    @property
    def _transform(self) -> TrainingTransform:
        return TrainingTransform(self.crop_size)
