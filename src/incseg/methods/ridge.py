"""The closed-form head as a method: step 0 is trained, every later step is one pass over its images and one solve."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch.distributed as dist
from pydantic import Field
from torch import Tensor

from incseg.batch import Batch
from incseg.errors import InputError
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Part, Weight, default
from incseg.models import Segmenter
from incseg.models.closed_form import METHOD, FeatureLayout, Statistics
from incseg.models.devices import exact_device
from incseg.models.gather import FRUGAL, GENEROUS, Fit, as_state, feature_layout, gather, solved_head
from incseg.models.tensor_file import as_stored

Width = Annotated[int, Field(ge=1, le=16384)]  # A of the largest takes 2 GB
Side = Annotated[int, Field(ge=0, le=255)]  # of a window, in cells; 0: there is none
Crops = Annotated[int, Field(ge=0, le=100)]  # of every image
Ridge = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass
class ClosedForm(Part):
    """Gathers the statistics of a closed-form head at the end of a step, and puts the head they give on the network.

    With ``carried`` it only gathers them, at the end of the run and where the images label all classes, so that the
    model can be extended in closed form later; the network keeps its trained head.
    """

    remembers: ClassVar[bool | None] = True
    first_step: ClassVar[str | None] = ""  # the network of step 0 is trained as without it
    width: int | None = None
    stages: int | None = 1
    stride: int | None = None
    seed: int = 0
    original: int = 0
    context: int = 0
    fit: Fit = field(default_factory=Fit)
    carried: bool = False

    @property
    def solves(self) -> bool:
        """Whether later steps are solved instead of trained."""
        return not self.carried

    def check_network(self, student: Segmenter) -> None:
        """Refuse stages that the encoder does not have; a model is trained also where it can carry no statistics."""
        if self.solves:
            self._layout(student, num_classes=1)

    def begin(self, context: Context) -> None:  # noqa: ARG002
        """Training moves the features: statistics of earlier ones mean nothing any more."""
        self.memory = {}

    def end(self, context: Context) -> None:
        """Add the step's cells to the statistics and solve."""
        if self.carried and not (context.labels_everything and context.step.is_last):
            return
        self._keep_original(context)
        try:
            statistics = self._statistics(context)
        except InputError as error:
            if self.solves:
                raise
            context.student.keep_original(None)  # for nothing
            context.say(f"the model gets no statistics for later extensions: {error}")
            return
        if self.fit.crops:
            _name_other_scale(context)
        cells = context.pixel_counts() / statistics.layout.stride**2
        statistics = statistics.with_classes(cells[statistics.num_classes :])
        images = self._images(context)
        complete = context.step.complete
        statistics = gather(context.student, statistics, images, self.fit, _sum_over_processes, complete=complete)
        _name_unseen_classes(context, statistics)
        if self.solves:
            grown = [*context.student.classifier.head_sizes, *([len(context.step.new)] if context.step.new else [])]
            sizes = grown if context.step.index > 0 else [context.step.num_classes]
            head = solved_head(statistics, sizes, self.fit.ridge)
            context.student.use_head(head.to(context.student.mean.device))
        self.memory = as_state(statistics, self.fit, context.student)
        size = sum(tensor.nbytes for tensor in self.memory.values())
        context.say(f"statistics of {statistics.num_classes - 1} classes for later extensions: {size / 1e6:.1f} MB")

    def _images(self, context: Context) -> Iterable[Batch]:
        """A head that is solved now is scored at once; what is only carried will meet images as they are."""
        if self.fit.crops:
            return context.batches(self.fit.crops)
        return context.images_as_scored() if self.solves else context.whole_images()

    def _keep_original(self, context: Context) -> None:
        """Let the network keep its encoder as it was before training, if the head is to see that; once, at step 0."""
        if self.memory or not self.original:
            return
        try:
            encoder = context.pretrained_encoder()
        except InputError as error:
            encoder = None
            context.say(f"the closed-form head sees the trained encoder only: {error}")
        if encoder is not None:
            size = sum(as_stored(tensor).nbytes for tensor in encoder.state_dict().values())
            context.say(f"the model keeps its encoder as it was before training: {size / 1e6:.1f} MB")
        context.student.keep_original(encoder)

    def _statistics(self, context: Context) -> Statistics:
        """Of the steps before; none yet at step 0."""
        device = exact_device(context.student.mean.device)
        if self.memory:
            return Statistics.from_state({name: value.to(device) for name, value in self.memory.items()})
        return Statistics.empty(self._layout(context.student, context.step.num_classes), device)

    def _layout(self, student: Segmenter, num_classes: int) -> FeatureLayout:
        return feature_layout(
            student,
            num_classes,
            width=self.width,
            stages=self.stages,
            original=self.original,
            stride=self.stride,
            context=self.context,
            seed=self.seed,
            ratio=FRUGAL if self.carried else GENEROUS,
        )


def _name_unseen_classes(context: Context, statistics: Statistics) -> None:
    """A class so thin that no cell shows it at its centre gets no score; better to know before using the model."""
    if unseen := statistics.unseen(context.step.new):
        finer = ", --analytic.stride 8 is finer" if context.step.index == 0 else ""  # later steps have its grid
        sentence = statistics.not_learnt([context.library.classes[channel] for channel in unseen])
        context.say(f"{sentence}; --analytic.soft true counts all pixels of a cell{finer}.")


def _name_other_scale(context: Context) -> None:
    """Features at another scale than those that are scored give a worse head; said once, where nothing is lost yet."""
    if context.scored_as_they_are and context.step.index == 0:
        context.say(
            "the head is fitted to training crops, and images are scored as they are: --analytic.crops 0 "
            "--analytic.mirrored true fits it to those."
        )


def _sum_over_processes(own: Tensor) -> Tensor:
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(own)
    return own


@register_method(
    METHOD,
    "learn every step after the first in closed form: one pass over its images, no training",
    paper="Zhuang et al., ACIL: Analytic Class-Incremental Learning with Absolute Memorization and Privacy Protection, "
    "NeurIPS 2022 (the idea; class balance, features and pseudo-labels are ours)",
)
def analytic(
    width: Width | None = None,
    balance: Weight = 0.3,
    ridge: Ridge = 1.0,
    stages: int = 1,
    stride: Literal[8, 16, 32] | None = None,
    mirrored: bool = True,
    certainty: Weight = 2.0,
    soft: bool = False,
    seed: int = 0,
    original: int = 0,
    context: Side = 0,
    crops: Crops = 0,
) -> Sequence[Part]:
    """``H = (A + γI)⁻¹ B`` on random features of the frozen network of step 0; step 0 is trained by any other method.

    ``width`` follows from the network unless it is given, and the statistics then stay below 70 MB; ``stride`` is 16,
    or 8 where the network's embedding is finer. ``original`` counts the last stages of the encoder as it was before
    training that the head sees too, ``context`` the cells along a side of the window around a cell whose mean it sees,
    and ``crops`` the passes over training crops that are seen instead of the images as they are scored.
    """
    fit = Fit(balance, ridge, mirrored, certainty, soft, crops)
    return [default(CrossEntropy()), ClosedForm(width, stages, stride, seed, original, context, fit)]
