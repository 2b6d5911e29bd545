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

    def whole_images(self, own: TrainingImages, *, as_scored: bool) -> Iterator[Batch]:
        """This process' share of a step's images, each at its own size or at the scale at which it would be scored."""
        whole = WholeImages(own.split, own.indices, own.table)
        if as_scored and self.config.data.scoring == "paper":
            whole = ScaledImages(own.split, own.indices, own.table, ShortSide(self.config.data.crop_size))
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
