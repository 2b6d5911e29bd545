"""RECALL: replay old classes in images from the web or from a generator, labelled by the network itself."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from incseg import losses
from incseg.batch import Outputs, View, upsample
from incseg.config import HeadKind
from incseg.errors import InputError
from incseg.loading.generated import PictureFolder, open_generator
from incseg.loading.replay import Replay
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Count, LossTerm, Part
from incseg.models import Segmenter
from incseg.models.heads import SoftmaxHead
from incseg.protocol import BACKGROUND, IGNORE, Step


@dataclass
class FrozenEncoder(Part):
    """After step 0 the encoder keeps its weights and its statistics."""

    def begin(self, context: Context) -> None:
        """Freeze, and switch batch normalisation to its statistics."""
        if context.teacher is not None:
            context.student.encoder.requires_grad_(False).eval()


@dataclass
class InpaintedCrossEntropy(CrossEntropy):
    """Cross-entropy on the step's images, with background replaced by the teacher's class."""

    needs_teacher: ClassVar[bool] = True
    complete: ClassVar[bool] = True

    def relabel(self, view: View) -> Tensor | None:
        """The teacher's class where the ground truth is background, unless that hides no old class."""
        if view.teacher is None or view.step.complete:
            return None
        return view.targets.where(view.labels != BACKGROUND, losses.prediction(view.teacher_scores)[0])


class HelperDecoder(nn.Module):
    """A second decoder on the frozen encoder, for the classes of one step alone."""

    def __init__(self, student: Segmenter, head_sizes: Sequence[int]):
        super().__init__()
        self.decoder = copy.deepcopy(student.decoder)
        self.architecture = student.architecture
        kernel = self.architecture.classifier_kernel
        self.classifier = SoftmaxHead(student.trained_head.channels, head_sizes, kernel)
        self.to(student.mean.device)

    def forward(self, images: Tensor, stages: Sequence[Tensor], like: Tensor) -> Tensor:
        """Normalised images and the encoder's stages → (B, 1+n, H, W) logits of background and the step's classes."""
        embedding = self.decoder([images, *stages])
        return upsample(Outputs(self.classifier(embedding), embedding, [], self.architecture.align_corners), like)


@dataclass
class ReplayedPictures(LossTerm):
    """Pictures of the old classes in every other batch, labelled by the helper decoder of the step that learnt them.

    The helper of step 0 is the network itself. Each later step trains a helper beside the network, on the step's own
    images and classes; it is kept in memory, and labels pictures of these classes in later steps.
    """

    heads: ClassVar[tuple[HeadKind, ...]] = ("softmax",)  # the helpers', the first of which is the network's own
    needs_new_classes: ClassVar[bool] = True
    first_step: ClassVar[str | None] = ""  # the helper of step 0 is taken from the teacher of step 1
    folder: Path | None = None
    generator: str | None = None
    per_class: int = 500
    _student: Segmenter = field(init=False, repr=False, compare=False)
    _helpers: dict[int, HelperDecoder] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def needs_stages(self) -> bool:  # type: ignore[override]  # a class variable elsewhere: here it follows a setting
        """Helpers use the stages; without pictures there are no helpers."""
        return self.folder is not None

    def check(self, steps: Sequence[Step], classes: Sequence[str]) -> None:
        """Every class that will be old needs pictures, or a generator and a folder for what it makes."""
        if self.folder is None:
            if self.generator is not None:
                raise InputError("--recall.generator needs --recall.images DIR: where its pictures are kept.")
            return
        names = [classes[channel] for channel in steps[-1].old]
        self._generate_missing(names, number=1)  # a generator that fails should fail before training
        PictureFolder(self.folder).check(names, self.per_class)

    def begin(self, context: Context) -> None:
        """Load the helpers of earlier steps, and add one for this step unless it is the last."""
        self._student, self._helpers = context.student, {}
        if context.teacher is None:
            return
        if self.folder is None:
            context.say("recall: there are no pictures to replay (--recall.images DIR); only background is inpainted")
            return
        if context.step.index == 1:
            self._save_helper(0, context.step.old, context.teacher)
        for index in range(context.step.index):
            self._helpers[index] = self._load_helper(index, context.student).eval().requires_grad_(False)
        if context.step.future:
            torch.manual_seed(context.seed)
            context.student.add_module("helper", HelperDecoder(context.student, [1 + len(context.step.new)]))

    def replay(self, context: Context) -> Replay | None:
        """The pictures of all classes learnt so far."""
        if context.teacher is None or self.folder is None:
            return None
        names = {channel: context.library.classes[channel] for channel in context.step.old}
        self._generate_missing(list(names.values()), self.per_class, context.say)
        files, channels = list[Path](), list[int]()
        for channel, name in names.items():
            found = PictureFolder(self.folder).files(name, self.per_class)
            files += found
            channels += [channel] * len(found)
        return Replay(context.library.pictures(files, channels), alternate=True)

    def relabel(self, view: View) -> Tensor | None:
        """Replayed pictures get their labels from the helper of their class."""
        if view.batch.replayed is None or not view.replayed.any():
            return None
        targets = view.targets.clone()
        for index, helper in self._helpers.items():
            channels = self.memory[f"{index}/channels"]
            mine = torch.isin(view.replayed, channels[1:])
            if mine.any():
                with torch.no_grad():
                    targets[mine] = channels[self._helper_logits(helper, view, mine).argmax(dim=1)]
        return targets

    def losses(self, view: View) -> dict[str, Tensor]:
        """The loss of this step's helper, on the step's own images and their ground truth."""
        helper = _current_helper(self._student)
        if helper is None:
            return {}
        own = view.replayed == BACKGROUND
        if not own.any():  # with several processes every parameter must be part of the loss
            return {"helper": torch.stack([0 * parameter.sum() for parameter in helper.parameters()]).sum()}
        labels, first = view.labels[own], view.step.new[0]
        # To a helper old classes are background, also where the step labels them.
        known = labels.where(labels == IGNORE, (labels - first + 1).clamp_min(BACKGROUND))
        return {"helper": losses.cross_entropy(self._helper_logits(helper, view, own), known)}

    def end(self, context: Context) -> None:
        """Move the helper from the network to the memory."""
        helper = _current_helper(context.student)
        if helper is not None:
            self._save_helper(context.step.index, context.step.new, helper)
            del context.student.helper

    def _helper_logits(self, helper: HelperDecoder, view: View, chosen: Tensor) -> Tensor:
        """A helper's logits for the chosen images of the batch, at their size."""
        images = self._student.normalise(view.batch.images[chosen])
        logits: Tensor = helper(images, [stage[chosen] for stage in view.student.stages], view.labels)
        return logits

    def _save_helper(self, index: int, channels: Sequence[int], network: nn.Module) -> None:
        state = network.state_dict()
        for name, tensor in state.items():
            if name.startswith(("decoder.", "classifier.")):
                self.memory[f"{index}/{name}"] = tensor.detach().clone()
        device = next(network.parameters()).device
        self.memory[f"{index}/channels"] = torch.tensor([BACKGROUND, *channels], device=device)

    def _load_helper(self, index: int, student: Segmenter) -> HelperDecoder:
        prefix = f"{index}/"
        state = {name.removeprefix(prefix): tensor for name, tensor in self.memory.items() if name.startswith(prefix)}
        del state["channels"]
        heads = takewhile(state.__contains__, (f"classifier.heads.{head}.weight" for head in count()))
        helper = HelperDecoder(student, [len(state[name]) for name in heads])
        helper.load_state_dict(state)
        return helper

    def _generate_missing(self, names: Sequence[str], number: int, say: Callable[[str], None] = lambda _: None) -> None:
        """Generate pictures of each class until there are ``number``, in one process for all."""
        if self.generator is None or self.folder is None:
            return
        wanted, pictures = self.generator, PictureFolder(self.folder)

        def fill() -> None:
            missing = [name for name in names if len(pictures.files(name, number)) < number]
            if not missing:
                return
            generator = open_generator(wanted)  # it may be large: only opened if needed, and released afterwards
            for name in missing:
                say(f"recall: making pictures of '{name}'")
                pictures.fill(name, number, generator)

        _on_first_process(fill)


def _on_first_process(do: Callable[[], None]) -> None:
    """Call a function in the first process while the others wait; an InputError is raised in all of them."""
    if losses.process_count() == 1:
        do()
        return
    message: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            do()
        except InputError as error:
            message = [str(error)]
    dist.broadcast_object_list(message, src=0)
    if message[0] is not None:
        raise InputError(message[0])


def _current_helper(student: Segmenter) -> HelperDecoder | None:
    """The helper of the current step. It is a submodule of the student, so that it is optimised and saved with it."""
    return getattr(student, "helper", None)


@register_method(
    "recall",
    "freeze the encoder, inpaint the background, and replay pictures of old classes (--recall.images DIR/CLASS/*.jpg)",
    paper="Maracani et al., RECALL: Replay-Based Continual Learning in Semantic Segmentation, ICCV 2021",
)
def recall(images: Path | None = None, generator: str | None = None, per_class: Count = 500) -> Sequence[Part]:
    """``L = L_ce`` on inpainted images alternating with pictures of old classes labelled by their helpers."""
    return [InpaintedCrossEntropy(), FrozenEncoder(), ReplayedPictures(images, generator, per_class)]
