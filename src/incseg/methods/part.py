"""What a method is made of: parts, each of which may add a loss, relabel, watch gradients or prepare a step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from incseg.batch import Batch, View
from incseg.config import HeadKind, OptimConfig
from incseg.curriculum.curriculum import Library
from incseg.loading.replay import Replay
from incseg.models import Segmenter
from incseg.protocol import Step

# Types of settings that several methods have; pydantic refuses values outside their range.
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Stride = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1)]

SINGLE_LAYER: tuple[HeadKind, ...] = ("softmax", "sigmoid")


@dataclass(frozen=True)
class Context:
    """What a part may use at the beginning and the end of a step."""

    step: Step
    student: Segmenter
    teacher: Segmenter | None
    batches: Callable[[int], Iterable[Batch]]
    """So many passes over the step's own training batches, on the device: the same whenever it is called."""
    library: Library
    """Images to replay."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """How the step is optimised."""
    stable_curvature: float = math.inf
    """The largest second derivative of the loss at which the optimizer still converges in this step.

    Where the loss curves more than this, every update overshoots the minimum by more than the one before.
    """
    whole_images: Callable[[], Iterable[Batch]] = tuple
    """One pass over the step's own training images as they are: each at its own size, those of one size together."""
    images_as_scored: Callable[[], Iterable[Batch]] = tuple
    """The same images, as large as they would be if they were scored."""
    pixel_counts: Callable[[], Tensor] = lambda: torch.zeros(0)
    """(C,) pixels of each class in the labels of these images, in float64."""
    pretrained_encoder: Callable[[], nn.Module | None] = lambda: None
    """The student's encoder as it was before any training; None if that began with random weights."""
    images_overlap: bool = True
    """Whether these images may show classes of later steps, as in the overlapped setting."""
    labels_everything: bool = True
    """Whether these images label every class the student knows, not only those of the step."""
    scored_as_they_are: bool = False
    """Whether images are scored at their own size, instead of at the scale of training crops."""
    fused: bool = False
    """Whether losses at the size of the image may avoid that size: ``engine.compile``."""
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    """Inside, networks compute in the precision that they train in."""
    seed: int = 0
    """For random choices: derived from the run and the step, the same in every process."""
    say: Callable[[str], None] = print
    """Print a line for the user."""


@dataclass
class Part:
    """One ingredient of a method. Settings are dataclass fields; state that must survive a crash is in ``memory``."""

    heads: ClassVar[tuple[HeadKind, ...]] = SINGLE_LAYER
    """The kinds of head it works with; a loss on labels or on the teacher's outputs only with those it names."""
    needs_teacher: ClassVar[bool] = False
    needs_stages: ClassVar[bool] = False
    """Uses the encoder's stages, of the student and of the teacher."""
    needs_raw_stages: ClassVar[bool] = False
    """Uses them as they are before their last activation."""
    uses_saliency: ClassVar[bool] = False
    """Looks at where background is salient (``view.salient``), if the data has saliency maps; others never see any."""
    joins_images: ClassVar[bool] = False
    """Its loss compares the images of a batch with each other, so it is not the mean of the losses of smaller ones."""
    rehearses: ClassVar[bool] = False
    """Keeps some images of earlier steps by their index in the dataset, which must therefore still be available."""
    needs_new_classes: ClassVar[bool] = False
    """Has no meaning in a step that brings no new classes, as those of a domain protocol."""
    keeps_data: ClassVar[bool] = False
    """Trains on the images and labels of all steps so far: only the upper reference may."""
    remembers: ClassVar[bool | None] = None
    """Keeps something from one step to the next, in ``memory``.

    None derives it: true for a part that overrides ``observe``, ``end`` or ``gather``. Set it where that is wrong.
    """
    first_step: ClassVar[str | None] = None
    """A name for what this part changes in step 0: methods with equal names can share a step-0 model.

    None derives it: a part that remembers needs a step 0 of its own, any other trains it like plain cross-entropy. Set
    it where that is wrong; empty means that step 0 is plain cross-entropy.
    """

    @property
    def solves(self) -> bool:
        """Later steps are solved by this part's ``end`` alone, from what it remembers: no training, no teacher."""
        return False

    memory: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """State that is saved in checkpoints and kept from step to step."""
    origin: str = field(default="", init=False, repr=False, compare=False)
    """The name of the method that brought this part, for error messages."""
    is_default: bool = field(default=False, init=False, repr=False, compare=False)
    """Gives way to any other part in the same slot; see :func:`default`."""

    def check(self, steps: Sequence[Step], classes: Sequence[str]) -> None:
        """Before any training: raise an InputError for steps or class names (by channel) that cannot work."""

    def check_network(self, student: Segmenter) -> None:
        """Before any training: raise an InputError for a network that this part cannot work with."""

    def begin(self, context: Context) -> None:
        """Before a step: initialise the new head, freeze, estimate thresholds."""

    def replay(self, context: Context) -> Replay | None:  # noqa: ARG002
        """Images the step sees besides its own, or None; called after ``begin``."""
        return None

    def relabel(self, view: View) -> Tensor | None:  # noqa: ARG002
        """New targets (B, H, W) for the segmentation loss, or None to leave them; never in place."""
        return None

    def observe(self, view: View, student: Segmenter) -> None:
        """After backward and before the optimizer: gradients are those of the loss terms, without penalties.

        They may not be finite; what is put into ``memory`` is then dropped. So replace tensors there, and never change
        them in place.
        """

    def end(self, context: Context) -> None:
        """After a step that was trained, step 0 included; of parts that solve, after those that are solved too."""

    def gather(self, context: Context) -> None:
        """After every part's ``end``: statistics of the step's images, with the network as it will be kept."""


@dataclass
class LossTerm(Part, ABC):
    """A part with losses on a batch."""

    @abstractmethod
    def losses(self, view: View) -> dict[str, Tensor]:
        """Weighted scalars by name."""


@dataclass
class Penalty(Part, ABC):
    """A part with a loss on the parameters alone, independent of the batch."""

    @abstractmethod
    def penalty(self, student: Segmenter) -> Tensor:
        """A weighted scalar."""

    def add_gradients(self, student: Segmenter) -> Tensor:
        """Add the gradient of the penalty to ``.grad``, and return the penalty."""
        penalty = self.penalty(student)
        if penalty.requires_grad:  # at step 0 it is a constant
            parameters = [parameter for parameter in student.parameters() if parameter.requires_grad]
            gradients = torch.autograd.grad(penalty, parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return penalty


@dataclass
class Segmentation(LossTerm):
    """A slot: the loss on the labels. A method has exactly one."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)


@dataclass
class Distillation(LossTerm):
    """A slot: the loss on the teacher's outputs. A method has at most one."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)


@dataclass
class Contrast(LossTerm):
    """A slot: the loss that contrasts pixels. A method has at most one."""

    joins_images: ClassVar[bool] = True


@dataclass
class Initialisation(Part):
    """A slot: how the head of a step begins. A method has at most one; without, it begins as PyTorch does it."""


SLOTS: tuple[type[Part], ...] = (Segmentation, Distillation, Contrast, Initialisation)


def default(part: Part) -> Part:
    """Mark a part as a default: it is used only if no other method in the sum brings one for the same slot."""
    part.is_default = True
    return part


def replays(part: Part) -> bool:
    """Whether a part adds images to the step's own."""
    return type(part).replay is not Part.replay


def remembers(part: Part) -> bool:
    """Whether a part keeps something from one step to the next."""
    if part.remembers is not None:
        return part.remembers
    return any(getattr(type(part), hook) is not getattr(Part, hook) for hook in ("observe", "end", "gather"))


def first_step(part: Part) -> str:
    """What a part changes in step 0; empty if nothing."""
    if part.first_step is not None:
        return part.first_step
    return type(part).__name__ if remembers(part) else ""
