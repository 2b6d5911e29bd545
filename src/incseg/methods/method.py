"""A method is a sum of parts: ``MethodSum`` collects them, ``Method`` has at most one per slot and can train."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from incseg import losses
from incseg.batch import Batch, Outputs, View
from incseg.config import DataConfig
from incseg.errors import InputError
from incseg.loading.replay import Replay
from incseg.methods.part import (
    SLOTS,
    Context,
    LossTerm,
    Part,
    Penalty,
    Segmentation,
    first_step,
    remembers,
    replays,
)
from incseg.models import Segmenter
from incseg.protocol import Step


@dataclass(frozen=True, repr=False)
class MethodSum:
    """The parts of one method, or of several that were added: ``mib() + ucd()``.

    Several parts may still claim the same slot. ``resolve()`` decides between them, once, after everything is added:
    deciding at every ``+`` would make the result depend on the order of additions.
    """

    name: str
    parts: tuple[Part, ...]

    def __repr__(self) -> str:
        return _described(self)

    def __add__(self, other: "MethodSum") -> "MethodSum":
        return MethodSum(f"{self.name}+{other.name}", self.parts + other.parts)

    def resolve(self) -> "Method":
        """The method that can be trained, with one part per slot.

        A default gives way to any other part, and a general part to its specialisation (a subclass). If several
        defaults remain, the first one named is used; if several others do, the sum is refused.
        """
        parts = list(self.parts)
        for slot in SLOTS:
            candidates = [part for part in parts if isinstance(part, slot)]
            chosen = _choose(candidates, slot)
            parts = [part for part in parts if part is chosen or not isinstance(part, slot)]
        parts = _without_repetition(parts)
        _refuse_two_replays([part for part in parts if replays(part)])
        if not any(isinstance(part, Segmentation) for part in parts):
            raise InputError(
                f"the method '{self.name}' has no segmentation loss: add one, for example 'ft+{self.name}'."
            )
        return Method(self.name, tuple(parts))


@dataclass(frozen=True, repr=False)
class Method:
    """A method that can be trained: what the engine calls. ``MethodSum.resolve()`` and ``parse()`` make one."""

    name: str
    parts: tuple[Part, ...]

    def __repr__(self) -> str:
        return _described(self)

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher must run on each batch."""
        return any(part.needs_teacher for part in self.parts)

    @property
    def needs_stages(self) -> bool:
        """Whether the networks must return the encoder's stages."""
        return any(part.needs_stages for part in self.parts)

    @property
    def needs_raw_stages(self) -> bool:
        """Whether the networks must return the stages before their last activation."""
        return any(part.needs_raw_stages for part in self.parts)

    def used(self, data: DataConfig) -> DataConfig:
        """The settings of the data, without saliency maps if no part looks at them."""
        uses_saliency = any(part.uses_saliency for part in self.parts)
        return data if uses_saliency else data.model_copy(update={"saliency": None})

    @property
    def solves(self) -> bool:
        """Whether steps after the first are solved in closed form instead of trained."""
        return any(part.solves for part in self.parts)

    @property
    def lacks_statistics(self) -> bool:
        """Whether later steps are to be solved, but nothing is remembered yet to solve them from."""
        return any(part.solves and not part.memory for part in self.parts)

    @property
    def watches(self) -> bool:
        """Whether a part looks at the gradients of an iteration, or adds some, before the parameters change."""
        return any(isinstance(part, Penalty) or type(part).observe is not Part.observe for part in self.parts)

    @property
    def rehearses(self) -> bool:
        """Whether images of earlier steps are loaded again from the dataset."""
        return any(part.rehearses for part in self.parts)

    @property
    def keeps_data(self) -> bool:
        """Whether the data of earlier steps is kept (the upper reference)."""
        return any(part.keeps_data for part in self.parts)

    @property
    def first_step(self) -> str:
        """What distinguishes this method's step 0 from plain cross-entropy training; empty if nothing does."""
        return "+".join(sorted({first_step(part) for part in self.parts} - {""}))

    @property
    def remembers(self) -> bool:
        """Whether something besides the network is kept from step to step."""
        return any(remembers(part) for part in self.parts)

    @property
    def replays(self) -> bool:
        """Whether images of old classes are added to those of a step."""
        return any(replays(part) for part in self.parts)

    def check(self, steps: Sequence[Step], classes: Sequence[str]) -> None:
        """Call ``check`` of every part, and refuse one that needs new classes where a step brings none."""
        for part in self.parts:
            if part.needs_new_classes and not all(step.new for step in steps):
                raise InputError(
                    f"'{part.origin or self.name}' has no meaning where steps bring domains and no new classes: use "
                    "ft, joint, mib, plop, ucd or another method that does not live on them."
                )
            part.check(steps, classes)

    def check_network(self, student: Segmenter) -> None:
        """Call ``check_network`` of every part."""
        for part in self.parts:
            part.check_network(student)

    def begin(self, context: Context) -> None:
        """Call ``begin`` of every part."""
        for part in self.parts:
            part.begin(context)

    def replay(self, context: Context) -> Replay | None:
        """The replayed images of this step, from the one part that has any."""
        found = (part.replay(context) for part in self.parts)
        return next((replay for replay in found if replay is not None), None)

    def end(self, context: Context) -> None:
        """Call ``end`` of every part, then ``gather`` of every part."""
        for part in self.parts:
            part.end(context)
        for part in self.parts:
            part.gather(context)

    def solve(self, context: Context) -> None:
        """Conclude a step in which nothing is trained: only for parts that solve it; for the others it never began."""
        for part in self.parts:
            if part.solves:
                part.end(context)

    def view(
        self,
        batch: Batch,
        student: Outputs,
        teacher: Outputs | None,
        step: Step,
        *,
        fused: bool = False,
        computed_in: torch.dtype = torch.float32,
    ) -> View:
        """What the losses are computed from; every relabelling part starts from the targets of the one before it.

        ``fused``: kernels may compute the losses, those at the size of the image without ever having that size; see
        :func:`incseg.losses.enlarge`. ``computed_in``: see :class:`View`.
        """
        enlarge = partial(losses.enlarge, fused=fused)
        view = View(batch, student, teacher, step, enlarge=enlarge, fused=fused, computed_in=computed_in)
        for part in self.parts:
            targets = part.relabel(view)
            view = view if targets is None else replace(view, relabelled=targets)
        return view

    def losses(self, view: View) -> dict[str, Tensor]:
        """All weighted loss terms by name; their sum is the objective.

        Without a teacher, at step 0, parts that need one are skipped; the segmentation loss is always computed.
        """
        terms: dict[str, Tensor] = {}
        for part in self.parts:
            skipped = part.needs_teacher and view.teacher is None and not isinstance(part, Segmentation)
            if isinstance(part, LossTerm) and not skipped:
                for name, value in part.losses(view).items():
                    if name in terms:
                        raise InputError(f"two parts of the method '{self.name}' call their loss '{name}': rename one.")
                    terms[name] = value
        return terms

    def observe(self, view: View, student: Segmenter, wrong: Tensor) -> None:
        """Call ``observe`` of every part; none remembers anything of an iteration that went wrong.

        ``wrong``: (), above 0 if a loss or a gradient is not finite. It is looked at on the device, without waiting.
        """
        for part in self.parts:
            before = dict(part.memory)
            part.observe(view, student)
            part.memory = _unless(wrong, before, part.memory)

    def add_penalty_gradients(self, student: Segmenter) -> dict[str, Tensor]:
        """Add the gradients of all penalties to ``.grad``, and return the penalties by name.

        They depend on parameters alone, so every process adds the same and nothing needs to be exchanged.
        """
        return {type(p).__name__: p.add_gradients(student) for p in self.parts if isinstance(p, Penalty)}

    def memory(self) -> dict[str, Tensor]:
        """The memory of all parts, flat: ``"PartName.key"`` → tensor."""
        return {f"{type(p).__name__}.{key}": value for p in self.parts for key, value in p.memory.items()}

    def without_solved(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The memory of another run, less that of parts that solve: it holds for the settings of that run only."""
        solving = tuple(f"{type(part).__name__}." for part in self.parts if part.solves)
        return {key: value for key, value in memory.items() if not key.startswith(solving)}

    def load_memory(self, memory: dict[str, Tensor]) -> None:
        """Restore what ``memory`` returned."""
        for part in self.parts:
            prefix = f"{type(part).__name__}."
            part.memory = {key.removeprefix(prefix): t for key, t in memory.items() if key.startswith(prefix)}


def _described(method: "MethodSum | Method") -> str:
    """Name and parts on one line; the settings of a part are shown by the part."""
    return f"{type(method).__name__}({method.name}: {', '.join(type(part).__name__ for part in method.parts)})"


def _choose(candidates: Sequence[Part], slot: type[Part]) -> Part | None:
    """The one part that fills a slot, or None if there is no candidate."""
    explicit = [part for part in candidates if not part.is_default]
    claims = explicit or candidates
    claims = [
        part
        for index, part in enumerate(claims)
        # A part gives way to a strict specialisation of itself, and to an equal one that was named first.
        if not any(isinstance(other, type(part)) and type(other) is not type(part) for other in claims)
        and part not in claims[:index]
    ]
    if explicit and len(claims) > 1:
        first, second = claims[:2]
        raise InputError(
            f"'{first.origin}' and '{second.origin}' cannot be summed: both bring {_named(slot)} "
            f"({type(first).__name__} and {type(second).__name__}); keep one of them."
        )
    return claims[0] if claims else None


def _named(slot: type[Part]) -> str:
    """``a segmentation loss``, ``an initialisation``."""
    name = slot.__name__.lower()
    return f"a {name} loss" if issubclass(slot, LossTerm) else f"an {name}"


def _without_repetition(parts: Sequence[Part]) -> list[Part]:
    """A part that two methods bring is used once; if its settings differ, the sum is refused."""
    kept: dict[str, Part] = {}  # by the name of the class, under which memory is saved
    for part in parts:
        other = kept.setdefault(type(part).__name__, part)
        if other != part:
            raise InputError(
                f"'{other.origin}' and '{part.origin}' both bring {type(part).__name__}, with different settings "
                f"({other} and {part}); give them the same."
            )
    return list(kept.values())


def _refuse_two_replays(parts: Sequence[Part]) -> None:
    if len(parts) > 1:
        first, second = parts[:2]
        raise InputError(f"'{first.origin}' and '{second.origin}' cannot be summed: both replay images; keep one.")


def _unless(wrong: Tensor, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is remembered after an iteration; what was before it if something was wrong.

    That is decided on the device. What a part keeps on the host counts iterations, also those that were skipped.
    """
    changed = {key: value for key, value in after.items() if value is not before.get(key)}
    changed = {key: value for key, value in changed.items() if value.device == wrong.device}
    if all(key in before and _alike(before[key], value) for key, value in changed.items()):
        is_wrong = wrong > 0
        return after | {key: torch.where(is_wrong, before[key], value) for key, value in changed.items()}
    return before if wrong.item() else after  # something new: mostly in the first iteration of a step


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.device == other.device
