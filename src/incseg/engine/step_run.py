"""A step while it is being trained."""

from dataclasses import dataclass

from incseg.engine.checkpoint import Pace
from incseg.engine.finite import UpdateGuard
from incseg.engine.quick_network import Teacher
from incseg.loading import BatchAddresses, TrainingSet
from incseg.methods import Context
from incseg.protocol import Step


@dataclass(frozen=True)
class StepRun:
    """A step while it is being trained."""

    context: Context
    images: TrainingSet
    addresses: BatchAddresses
    teacher: Teacher | None
    """The teacher as an iteration calls it."""
    guard: UpdateGuard
    pace: Pace

    @property
    def step(self) -> Step:
        """The classes and images of the step."""
        return self.context.step

    @property
    def name(self) -> str:
        """The step's name in logs."""
        return f"step {self.step.index}"

    @property
    def per_epoch(self) -> int:
        """Iterations in an epoch."""
        return self.addresses.per_epoch

    @property
    def iterations(self) -> int:
        """Iterations in the step."""
        return len(self.addresses)

    def image_names(self, iteration: int) -> list[str]:
        """The images of a batch over all processes, as the dataset calls them."""
        own = self.images.own
        positions = self.addresses.images_of(iteration)
        return [own.split.ids[own.indices[i]] if i < len(own) else "a replayed image" for i in positions]
