"""The images of a step as a run reads them: in batches, or whole, each process its share."""

from collections.abc import Iterator
from dataclasses import dataclass

from lightning.fabric import Fabric
from torch import Tensor

from incseg.batch import Batch
from incseg.config import RunConfig
from incseg.engine.evaluator import loading_processes
from incseg.engine.image_cache import ImageCache
from incseg.engine.journal import Journal
from incseg.engine.left_out import LeftOut
from incseg.loading import (
    BatchAddresses,
    ScaledImages,
    ShortSide,
    TrainingImages,
    TrainingSet,
    WholeImages,
    whole_loader,
)
from incseg.protocol import Step
from incseg.seeding import seed_from


@dataclass(frozen=True)
class StepData:
    """Reads the images of steps."""

    config: RunConfig
    fabric: Fabric
    journal: Journal
    left_out: LeftOut
    cache: ImageCache

    def addresses(self, step: Step, images: TrainingSet, epochs: int, start: int = 0) -> BatchAddresses:
        """Which images make up the step's batches, from any iteration on."""
        own, replayed = images.shares
        return BatchAddresses(
            images=own,
            batch_size=self.config.optim.batch_size,
            epochs=epochs,
            seed=seed_from(self.config.seed, "batches", step.index),
            weights=images.own.weights,
            replayed=replayed,
            alternate=images.replay is not None and images.replay.alternate,
            start=start,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
        )

    def batches(self, step: Step, images: TrainingSet, epochs: int, start: int = 0) -> Iterator[Batch]:
        """The step's batches on the device."""
        addresses, note = self.addresses(step, images, epochs, start), self.left_out.from_training
        if self.cache.curriculum.data.saliency is None:
            return self.cache.batches(images, addresses, note)
        return (batch.telling_salient() for batch in self.cache.batches(images.telling_salient(), addresses, note))

    @property
    def scored_scale(self) -> ShortSide | None:
        """How images are resized when they are scored; None: not at all."""
        return ShortSide(self.config.data.crop_size) if self.config.data.scoring == "paper" else None

    def images_as_scored(self, own: TrainingImages) -> Iterator[Batch]:
        """This process' share of a step's images, each as large as it would be if it were scored."""
        scale = self.scored_scale
        if scale is None:
            return self.whole_images(own)
        return self._passed_once(ScaledImages(own.split, own.indices, own.table, scale))

    def whole_images(self, own: TrainingImages) -> Iterator[Batch]:
        """This process' share of a step's images, each at its own size."""
        return self._passed_once(WholeImages(own.split, own.indices, own.table))

    def _passed_once(self, whole: WholeImages) -> Iterator[Batch]:
        engine, fabric = self.config.engine, self.fabric
        workers, done = loading_processes(self.config), 0
        share = range(fabric.global_rank, len(whole), fabric.world_size)
        loader = whole_loader(whole, engine.score_batch_size, workers, share, self.left_out.from_training)
        with self.journal.progress("gathering statistics") as advance:
            for batches in loader:
                yield from batches
                done += fabric.world_size * sum(len(batch.images) for batch in batches)
                advance(min(done, len(whole)), len(whole))

    def pixel_counts(self, own: TrainingImages, num_classes: int) -> Tensor:
        """(C,) pixels of each class in the labels of a step's images."""
        with self.journal.progress("counting the pixels of each class") as advance:
            return own.pixel_counts(num_classes, advance, self.left_out.from_training)
