"""A dataset under a protocol: for every step, what may be learnt from and what is scored."""

from collections.abc import Sequence
from dataclasses import dataclass

from incseg.data.loader import ScoredImages, TrainingImages
from incseg.data.scan import Progress, class_presence
from incseg.data.source import Source
from incseg.data.steps import Future, Void, scored_images, scoring_table, training_images, training_table
from incseg.data.transforms import TrainingTransform
from incseg.errors import InputError
from incseg.protocol import Protocol, Step, class_order


@dataclass(frozen=True)
class LabelPolicy:
    """The choices on which codebases differ; the defaults are the paper's."""

    void: Void = "ignore"
    future: Future = "background"
    score_on_all: bool = False


class Curriculum:
    """The steps of a protocol on a source, with the images and labels of each."""

    def __init__(
        self,
        source: Source,
        protocol: Protocol,
        *,
        wanted_order: Sequence[str] | None = None,
        policy: LabelPolicy | None = None,
        progress: Progress | None = None,
    ):
        self.source, self.protocol, self.policy = source, protocol, policy or LabelPolicy()
        self.order = class_order(source.classes, wanted_order)
        self.steps = protocol.steps(len(source.classes) - 1)
        self.classes = tuple(source.classes[dataset_id] for dataset_id in self.order)
        self._train_presence = class_presence(source.train, source.classes, progress=progress)
        self._val_presence = class_presence(source.val, source.classes, progress=progress)
        for step in self.steps:
            self._require_images(step)

    def training_images(self, step: Step, crop_size: int, *, keep_old: bool = False) -> TrainingImages:
        """What a step learns from; with ``keep_old`` also all images of earlier steps, under all labels seen so far."""
        chosen = {i for past in self.steps[: step.index + 1] if keep_old or past is step for i in self._indices(past)}
        table = training_table(step, self.order, self.policy.void, keep_old=keep_old)
        return TrainingImages(self.source.train, sorted(chosen), table, TrainingTransform(crop_size))

    def scored_images(self, step: Step) -> list[ScoredImages]:
        """What is scored after a step."""
        everything = list(range(len(self.source.val)))
        indices = everything if self.policy.score_on_all else scored_images(self._val_presence, step, self.order)
        return [self._scored(step, indices)]

    def pictured_images(self, step: Step, number: int) -> tuple[list[str], ScoredImages]:
        """The validation images that show the most classes, the same at every step, to look at."""
        crowded = sorted(range(len(self.source.val)), key=lambda i: (-len(self._val_presence[i]), i))[:number]
        return [self.source.val.ids[i] for i in crowded], self._scored(step, crowded)

    def _scored(self, step: Step, indices: Sequence[int]) -> ScoredImages:
        return ScoredImages(self.source.val, indices, scoring_table(step, self.order, self.policy.future))

    def _indices(self, step: Step) -> list[int]:
        return training_images(self._train_presence, step, self.protocol.setting, self.order)

    def _require_images(self, step: Step) -> None:
        names = ", ".join(self.classes[c] for c in step.new)
        if not self._indices(step):
            raise InputError(
                f"step {step.index} of {self.protocol} ({names}) has no training image in {self.source.name}; "
                "use another task, class order or setting."
            )
        if not scored_images(self._val_presence, step, self.order):
            raise InputError(
                f"after step {step.index} ({names}) no validation image of {self.source.name} shows a class learnt so "
                "far: there would be nothing to score; add such images to the validation split."
            )
