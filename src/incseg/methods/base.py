"""What a method is: a sum of parts, each of which may add a loss, relabel, watch gradients or prepare a step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from incseg.batch import Batch, Outputs, View
from incseg.curriculum.curriculum import Library
from incseg.errors import InputError
from incseg.loading.replay import Replay
from incseg.models import Segmenter
from incseg.protocol import Step


@dataclass(frozen=True)
class Context:
    """What a part may see at the beginning and the end of a step."""

    step: Step
    student: Segmenter
    teacher: Segmenter | None
    batches: Callable[[], Iterable[Batch]]
    """One pass over the step's own training batches, on the device."""
    library: Library
    """Images to replay."""
    stable_curvature: float = math.inf
    """What bends the loss more than this makes the optimizer overshoot further with every iteration of the step."""
    seed: int = 0
    """For random choices: of this run and step, the same in every process."""
    say: Callable[[str], None] = print
    """Tell the person who watches."""


@dataclass
class Part:
    """One ingredient. Settings are dataclass fields; what must survive a crash is a tensor in ``memory``."""

    needs_teacher: ClassVar[bool] = False
    needs_stages: ClassVar[bool] = False
    """Look at the encoder's stages, of the student and of the teacher."""
    rehearses: ClassVar[bool] = False
    """Keep some images of earlier steps by their number in the dataset: it must still be at hand."""
    keeps_data: ClassVar[bool] = False
    """Train on the images and labels of all steps so far: only the upper reference may."""
    remembers: ClassVar[bool | None] = None
    """Keep something of one step for the next, in ``memory``.

    None derives it: a part that watches gradients or concludes steps does. Set it where that is wrong.
    """
    first_step: ClassVar[str | None] = None
    """What a part makes of step 0: methods of equal names can share a step-0 model.

    None derives it: a part that remembers needs its own, any other leaves it as plain cross-entropy does. Set it where
    that is wrong; empty means "leaves it alone".
    """

    memory: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    origin: str = field(default="", init=False, repr=False, compare=False)
    is_default: bool = field(default=False, init=False, repr=False, compare=False)

    def check(self, steps: Sequence[Step], classes: Sequence[str]) -> None:
        """Before anything is learnt: refuse what cannot work with these steps and class names by channel."""

    def begin(self, context: Context) -> None:
        """Before a step: initialise the new head, freeze, estimate thresholds."""

    def replay(self, context: Context) -> Replay | None:  # noqa: ARG002
        """Images the step sees beside its own, or None; asked after ``begin``."""
        return None

    def relabel(self, view: View) -> Tensor | None:  # noqa: ARG002
        """New targets (B, H, W) for the segmentation loss, or None to leave them; never in place."""
        return None

    def observe(self, view: View, student: Segmenter) -> None:
        """After backward and before the optimizer: gradients are those of the loss terms alone."""

    def end(self, context: Context) -> None:
        """After a step, step 0 included."""


@dataclass
class LossTerm(Part, ABC):
    """A part with losses on a batch."""

    @abstractmethod
    def losses(self, view: View) -> dict[str, Tensor]:
        """Weighted scalars by name."""


@dataclass
class Penalty(Part, ABC):
    """A part that pulls on the parameters alone, whatever the batch."""

    @abstractmethod
    def penalty(self, student: Segmenter) -> Tensor:
        """A weighted scalar."""


@dataclass
class Segmentation(LossTerm):
    """A slot: the loss on the labels. A method has exactly one."""


@dataclass
class Distillation(LossTerm):
    """A slot: the loss on the teacher's outputs. A method has at most one."""


@dataclass
class Contrast(LossTerm):
    """A slot: the loss that contrasts pixels. A method has at most one."""


SLOTS: tuple[type[LossTerm], ...] = (Segmentation, Distillation, Contrast)


def default(part: Part) -> Part:
    """Mark a part that its method brings only for want of another in the same slot."""
    part.is_default = True
    return part


@dataclass(frozen=True)
class Method:
    """A sum of parts. ``mib() + ucd()`` collects; ``resolved()`` settles, once, who fills each slot."""

    name: str
    parts: tuple[Part, ...]

    def __add__(self, other: "Method") -> "Method":
        return Method(f"{self.name}+{other.name}", self.parts + other.parts)

    def resolved(self) -> "Method":
        """One part per slot: a default yields to any other, a general one to its specialisation; rivals are refused."""
        parts = list(self.parts)
        for slot in SLOTS:
            candidates = [part for part in parts if isinstance(part, slot)]
            winner = _winner(candidates, slot)
            parts = [part for part in parts if part is winner or not isinstance(part, slot)]
        parts = _without_repetition(parts)
        _refuse_two_memories([part for part in parts if replays(part)])
        if not any(isinstance(part, Segmentation) for part in parts):
            raise InputError(
                f"the method '{self.name}' has no segmentation loss: add one, for example 'ft+{self.name}'."
            )
        return replace(self, parts=tuple(parts))

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher must look at each batch."""
        return any(part.needs_teacher for part in self.parts)

    @property
    def needs_stages(self) -> bool:
        """Whether the networks must return the encoder's stages."""
        return any(part.needs_stages for part in self.parts)

    @property
    def rehearses(self) -> bool:
        """Whether images of earlier steps are looked up again."""
        return any(part.rehearses for part in self.parts)

    @property
    def keeps_data(self) -> bool:
        """Whether the data of earlier steps is kept (the upper reference)."""
        return any(part.keeps_data for part in self.parts)

    @property
    def first_step(self) -> str:
        """What distinguishes this method's step 0 from plain cross-entropy training; empty if nothing does."""
        return "+".join(sorted({_first_step(part) for part in self.parts} - {""}))

    @property
    def remembers(self) -> bool:
        """Whether something is kept from step to step beside the network."""
        return any(remembers(part) for part in self.parts)

    @property
    def replays(self) -> bool:
        """Whether images of old classes are seen again."""
        return any(replays(part) for part in self.parts)

    def check(self, steps: Sequence[Step], classes: Sequence[str]) -> None:
        """Let every part refuse what cannot work."""
        for part in self.parts:
            part.check(steps, classes)

    def begin(self, context: Context) -> None:
        """Let every part prepare the step."""
        for part in self.parts:
            part.begin(context)

    def replay(self, context: Context) -> Replay | None:
        """What the one part that replays brings for this step."""
        brought = (part.replay(context) for part in self.parts)
        return next((replay for replay in brought if replay is not None), None)

    def end(self, context: Context) -> None:
        """Let every part conclude the step."""
        for part in self.parts:
            part.end(context)

    def view(self, batch: Batch, student: Outputs, teacher: Outputs | None, step: Step) -> View:
        """What the parts will look at, with the targets that relabelling parts have made, each on top of the last."""
        view = View(batch, student, teacher, step)
        for part in self.parts:
            targets = part.relabel(view)
            view = view if targets is None else replace(view, relabelled=targets)
        return view

    def losses(self, view: View) -> dict[str, Tensor]:
        """All weighted loss terms by name; their sum is the objective.

        Without a teacher, at step 0, parts that need one rest; the segmentation loss speaks at every step.
        """
        terms: dict[str, Tensor] = {}
        for part in self.parts:
            rests = part.needs_teacher and view.teacher is None and not isinstance(part, Segmentation)
            if isinstance(part, LossTerm) and not rests:
                for name, value in part.losses(view).items():
                    assert name not in terms, f"two parts call their loss '{name}'"
                    terms[name] = value
        return terms

    def observe(self, view: View, student: Segmenter) -> None:
        """Let every part see the gradients of the loss terms."""
        for part in self.parts:
            part.observe(view, student)

    def add_penalty_gradients(self, student: Segmenter) -> dict[str, Tensor]:
        """Add the gradients of all penalties to ``.grad``, and return the penalties by name.

        They depend on parameters alone, so every process adds the same and none need be exchanged.
        """
        terms = {type(p).__name__: p.penalty(student) for p in self.parts if isinstance(p, Penalty)}
        total = torch.stack(list(terms.values())).sum() if terms else None
        if total is not None and total.requires_grad:  # a penalty with nothing to hold yet is a constant
            parameters = [p for p in student.parameters() if p.requires_grad]
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return terms

    def memory(self) -> dict[str, Tensor]:
        """Everything the parts remember, flat: ``"PartName.key"`` → tensor."""
        return {f"{type(p).__name__}.{key}": value for p in self.parts for key, value in p.memory.items()}

    def load_memory(self, memory: dict[str, Tensor]) -> None:
        """Give every part back what it remembered."""
        for part in self.parts:
            prefix = f"{type(part).__name__}."
            part.memory = {key.removeprefix(prefix): t for key, t in memory.items() if key.startswith(prefix)}


def replays(part: Part) -> bool:
    """Whether a part brings images beside the step's own."""
    return type(part).replay is not Part.replay


def remembers(part: Part) -> bool:
    """Whether a part keeps something of one step for the next."""
    if part.remembers is not None:
        return part.remembers
    return type(part).observe is not Part.observe or type(part).end is not Part.end


def _refuse_two_memories(parts: Sequence[Part]) -> None:
    if len(parts) > 1:
        first, second = parts[:2]
        raise InputError(f"'{first.origin}' and '{second.origin}' cannot be summed: both replay images; keep one.")


def _first_step(part: Part) -> str:
    if part.first_step is not None:
        return part.first_step
    return type(part).__name__ if remembers(part) else ""


def _without_repetition(parts: Sequence[Part]) -> list[Part]:
    """A part that two methods bring alike is needed once; brought with different settings, it is refused."""
    kept: dict[type[Part], Part] = {}
    for part in parts:
        other = kept.setdefault(type(part), part)
        if other != part:
            raise InputError(
                f"'{other.origin}' and '{part.origin}' both bring {type(part).__name__}, with different settings "
                f"({other} and {part}); give them the same."
            )
    return list(kept.values())


def _winner(candidates: Sequence[Part], slot: type[Part]) -> Part | None:
    """The one part that fills a slot, or None if nobody claims it."""
    claims = [part for part in candidates if not part.is_default] or candidates
    claims = [
        part
        for index, part in enumerate(claims)
        # A part yields to a strict specialisation of itself, and to an equal one that was named first.
        if not any(isinstance(other, type(part)) and type(other) is not type(part) for other in claims)
        and part not in claims[:index]
    ]
    if len(claims) > 1:
        first, second = claims[:2]
        raise InputError(
            f"'{first.origin}' and '{second.origin}' cannot be summed: both bring a {slot.__name__.lower()} loss "
            f"({type(first).__name__} and {type(second).__name__}); keep one of them."
        )
    return claims[0] if claims else None
