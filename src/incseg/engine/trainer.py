"""The trainer: all steps of a protocol in one process, from a seed, through any number of interruptions."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule, _FabricOptimizer
from timm.layers.norm_act import convert_sync_batchnorm
from torch import Tensor, nn

from incseg.batch import Batch, in_float32
from incseg.curriculum.curriculum import Curriculum, Library
from incseg.engine.evaluator import history_record, run_result, save_pictures, score, step_entry
from incseg.engine.journal import Journal
from incseg.errors import TrainingError
from incseg.loading import BatchAddresses, TrainingSet, scoring_loader, training_loader
from incseg.methods import Context, Method
from incseg.models import Segmenter
from incseg.models.storage import Record, describe_model, load_model, save_model
from incseg.protocol import Step
from incseg.run_folder import Progress, RunFolder, write_json
from incseg.seeding import seed_from


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a step is learnt (facts of the recipe, not of the machine)."""

    epochs: int
    batch_size: int
    learning_rate: float
    incremental_learning_rate: float
    momentum: float
    weight_decay: float
    power: float
    crop_size: int

    def learning_rate_at(self, step: Step, progress: float) -> float:
        """The poly schedule ``lr₀ (1 − progress)^power``, progress from 0 to 1 anew in every step."""
        initial = self.learning_rate if step.index == 0 else self.incremental_learning_rate
        return initial * math.pow(1 - progress, self.power)

    def stable_curvature(self, step: Step) -> float:
        """The second derivative up to which the optimizer settles: ``(2 + 2β) / ((1 + 2β) lr₀)``, β the momentum."""
        return (2 + 2 * self.momentum) / ((1 + 2 * self.momentum) * self.learning_rate_at(step, progress=0))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.SGD:
        """SGD with Nesterov momentum; its learning rate is set before every iteration."""
        return torch.optim.SGD(
            [p for p in parameters if p.requires_grad],
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.momentum > 0,
        )


@dataclass(frozen=True)
class Habits:
    """How the machine goes about it; no influence on the result."""

    workers: int = 0
    checkpoint_every: int | None = None
    log_every: int = 10
    score_batch_size: int = 8
    pictures: int = 8


@dataclass(frozen=True)
class Lesson:
    """A step while it is being learnt."""

    context: Context
    images: TrainingSet
    addresses: BatchAddresses
    model: _FabricModule
    optimizer: _FabricOptimizer

    @property
    def step(self) -> Step:
        """What is learnt."""
        return self.context.step

    @property
    def name(self) -> str:
        """How the step is called in logs."""
        return f"step {self.step.index}"

    @property
    def per_epoch(self) -> int:
        """Iterations in an epoch."""
        return self.addresses.per_epoch

    @property
    def iterations(self) -> int:
        """Iterations in the step."""
        return len(self.addresses)


@dataclass
class Trainer:
    """Learns the steps of a curriculum with a method; see :meth:`run`."""

    fabric: Fabric
    curriculum: Curriculum
    method: Method
    student: Segmenter
    schedule: Schedule
    habits: Habits
    folder: RunFolder
    journal: Journal
    seed: int
    header: Mapping[str, Any]
    first_step_given: bool = False
    """The student comes with the classes of step 0 already learnt elsewhere: it is only scored."""
    history: Sequence[Record] = ()
    """What the student has learnt so far, step by step; travels with every saved model."""

    def run(self) -> dict[str, Any]:
        """Learn, score and record every step that is not yet done; return the result."""
        entries: list[dict[str, Any]] = []
        result: dict[str, Any] = {}
        for step in self.curriculum.steps:
            done = self.folder.completed_step(step.index)
            if done is None:
                entries.append(self._take_step(step))
            else:
                memory, entry = done
                self._remember(memory)
                self.student, _ = load_model(self.folder.model(step.index))
                self.journal.remember_score(step.index, entry["miou"])
                self.history = describe_model(self.folder.model(step.index)).history
                entries.append(entry)
            result = run_result(self.header, self.curriculum.classes[: step.num_classes], entries)
            if self.fabric.is_global_zero:
                write_json(self.folder.result, result)
        return result

    def _take_step(self, step: Step) -> dict[str, Any]:
        images = 0
        if self.first_step_given and step.index == 0:
            self.student.to(self.fabric.device)
        else:
            lesson = self.prepare(step)
            self._learn(lesson)
            images = lesson.images.shares[0]
        entry = self._score(step, images)
        if self.fabric.is_global_zero:
            self.folder.complete_step(step.index, self.method.memory(), entry)
        self.fabric.barrier()
        return entry

    def prepare(self, step: Step) -> Lesson:
        """Set a step up: the student so far becomes the teacher, the classifier grows, the method's parts begin."""
        teacher = None
        if step.index > 0:
            teacher = copy.deepcopy(self.student).eval().requires_grad_(False).to(self.fabric.device)
            torch.manual_seed(seed_from(self.seed, "head", step.index))
            self.student.classifier.grow(len(step.new))
        own = self.curriculum.training_images(step, self.schedule.crop_size, keep_old=self.method.keeps_data)
        self.student = self._synchronised(self.student).to(self.fabric.device).train()
        self.student.requires_grad_(True)  # what an earlier step froze is this step's to decide anew
        context = Context(
            step,
            self.student,
            teacher,
            batches=lambda: self.batches(step, TrainingSet(own), epochs=1),
            library=Library(self.curriculum, self.schedule.crop_size),
            stable_curvature=self.schedule.stable_curvature(step),
            seed=seed_from(self.seed, "method", step.index),
            say=self.journal.say,
        )
        self.method.begin(context)
        images = TrainingSet(own, self.method.replay(context))
        model, optimizer = self.fabric.setup(self.student, self.schedule.optimizer(self.student.parameters()))
        return Lesson(context, images, self.addresses(step, images, self.schedule.epochs), model, optimizer)

    def _learn(self, lesson: Lesson) -> None:
        start = self._resume(lesson)
        self.journal.begin_step(lesson.step.index, lesson.iterations, lesson.per_epoch, start)
        batches = self.batches(lesson.step, lesson.images, self.schedule.epochs, start)
        for iteration, batch in enumerate(batches, start):
            terms = self.train_on(lesson, batch, iteration)
            self._record(lesson, terms, done=iteration + 1)
        self.journal.end_step()
        self._agree_on_statistics()
        self.method.end(lesson.context)

    def _agree_on_statistics(self) -> None:
        """Each process has watched its own share of the last batches; one model goes on, that of the first."""
        if self.fabric.world_size > 1:
            for buffer in self.student.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def train_on(self, lesson: Lesson, batch: Batch, iteration: int) -> dict[str, Tensor]:
        """One iteration: both networks look, the method speaks, the optimizer moves."""
        step, teacher = lesson.step, lesson.context.teacher
        torch.manual_seed(seed_from(self.seed, step.index, iteration, self.fabric.global_rank))
        for group in lesson.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate_at(step, iteration / lesson.iterations)
        with_stages = self.method.needs_stages
        outputs = lesson.model(batch.images, with_stages=with_stages)
        taught = None
        if teacher is not None and self.method.needs_teacher:
            with torch.no_grad(), self.fabric.autocast():
                taught = in_float32(teacher(batch.images, with_stages=with_stages))
        view = self.method.view(batch, outputs, taught, step)
        terms = self.method.losses(view)
        self.fabric.backward(torch.stack(list(terms.values())).sum())
        self.method.observe(view, self.student)
        terms |= self.method.add_penalty_gradients(self.student)
        lesson.optimizer.step()
        lesson.optimizer.zero_grad()
        return terms

    def _synchronised(self, student: Segmenter) -> Segmenter:
        """Batch normalisation over the batch of all devices, as in the paper; PyTorch has it for GPUs only."""
        if self.fabric.world_size == 1 or self.fabric.device.type != "cuda":
            return student
        # timm's, because PyTorch's own would drop the activations that timm's encoders fuse into their norms.
        synchronised: Segmenter = convert_sync_batchnorm(student)
        return synchronised

    def addresses(self, step: Step, images: TrainingSet, epochs: int, start: int = 0) -> BatchAddresses:
        """Which images make up the step's batches, from any iteration on."""
        own, replayed = images.shares
        return BatchAddresses(
            images=own,
            batch_size=self.schedule.batch_size,
            epochs=epochs,
            seed=seed_from(self.seed, "batches", step.index),
            replayed=replayed,
            alternate=images.replay is not None and images.replay.alternate,
            start=start,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
        )

    def batches(self, step: Step, images: TrainingSet, epochs: int, start: int = 0) -> Iterator[Batch]:
        """The step's batches on the device."""
        addresses = self.addresses(step, images, epochs, start)
        loader = training_loader(images, addresses, self.habits.workers, self.fabric.device.type == "cuda")
        yield from (batch.to(self.fabric.device) for batch in loader)

    def _record(self, lesson: Lesson, terms: Mapping[str, Tensor], done: int) -> None:
        """After an iteration: every so often a log line, the progress shown, every so often a checkpoint."""
        last = done == lesson.iterations
        saves = done % (self.habits.checkpoint_every or lesson.per_epoch) == 0 and not last
        if saves or last or done % self.habits.log_every == 0:
            values = self._global_means(terms)
            self._require_finite(lesson, values, done)
            values["learning_rate"] = lesson.optimizer.param_groups[0]["lr"]
            if last or done % self.habits.log_every == 0:
                self.journal.log(lesson.name, done, -(-done // lesson.per_epoch), values)
        self.journal.advance(done)
        if saves:
            self._save_progress(lesson, done)

    def _global_means(self, terms: Mapping[str, Tensor]) -> dict[str, float]:
        """The loss terms of the whole batch: all processes see the same, so all go on or all stop."""
        stacked = torch.stack([value.detach().float() for value in terms.values()])
        means = cast(Tensor, self.fabric.all_reduce(stacked, reduce_op="mean"))
        return dict(zip(terms, means.tolist(), strict=True))

    def _require_finite(self, lesson: Lesson, values: Mapping[str, float], done: int) -> None:
        if not all(map(math.isfinite, values.values())):
            rate = "learning-rate" if lesson.step.index == 0 else "incremental-learning-rate"
            added = {name: abs(value) for name, value in values.items() if name != "segmentation"}
            weight = f", or a smaller weight of {max(added, key=lambda n: _or_infinite(added[n]))}," if added else ""
            raise TrainingError(
                f"the loss is no longer finite at {lesson.name}, iteration {done} ({values}); "
                f"a lower --optim.{rate}{weight} usually helps (with another --out)."
            )

    def _save_progress(self, lesson: Lesson, done: int) -> None:
        if self.fabric.is_global_zero:
            optimizer, memory = lesson.optimizer.state_dict(), self.method.memory()
            self.folder.save_progress(Progress(lesson.step.index, done, self.student.state_dict(), optimizer, memory))
        self.fabric.barrier()

    def _resume(self, lesson: Lesson) -> int:
        """Take up a checkpoint of this step, if there is one; returns the iteration to go on with."""
        progress = self.folder.load_progress(lesson.step.index)
        if progress is None:
            return 0
        self.student.load_state_dict(progress.model)
        lesson.optimizer.optimizer.load_state_dict(progress.optimizer)
        self._remember(progress.memory)
        self.journal.say(f"resuming {lesson.name} at iteration {progress.iteration}")
        return progress.iteration

    def _remember(self, memory: Mapping[str, Tensor]) -> None:
        self.method.load_memory({key: value.to(self.fabric.device) for key, value in memory.items()})

    def _score(self, step: Step, images: int) -> dict[str, Any]:
        """Score the student on all processes together, keep the model and a few pictures."""
        rank, world_size, device = self.fabric.global_rank, self.fabric.world_size, self.fabric.device
        confusion = torch.zeros(step.num_classes, step.num_classes, dtype=torch.int64, device=device)
        for scored in self.curriculum.scored_images(step):
            loader = scoring_loader(scored, self.habits.score_batch_size, self.habits.workers, rank, world_size)
            confusion += score(self.student, loader, scored.counted_as(step.num_classes), device)
        confusion = cast(Tensor, self.fabric.all_reduce(confusion, reduce_op="sum"))
        classes = self.curriculum.classes[: step.num_classes]
        entry = step_entry(step, classes, images, confusion.cpu())
        if not (self.first_step_given and step.index == 0):
            self.history = [*self.history, self._record_of(step, entry)]
        if self.fabric.is_global_zero:
            save_model(self.student, classes, self.folder.model(step.index), self.history)
            names, pictured = self.curriculum.pictured_images(step, self.habits.pictures)
            save_pictures(self.student, names, pictured, self.folder.step(step.index) / "predictions", device)
        self.journal.score(step.index, entry["miou"])
        self.journal.show_pictures(step.index, self.folder.step(step.index) / "predictions")
        return entry

    def _record_of(self, step: Step, entry: Mapping[str, Any]) -> Record:
        scored = sum(len(images) for images in self.curriculum.scored_images(step))
        facts = {**asdict(self.schedule), "data": self.curriculum.source.name, "validation_images": scored}
        return history_record(self.header, entry, facts)


def _or_infinite(value: float) -> float:
    """A value that can be compared: nan is neither more nor less than another."""
    return math.inf if math.isnan(value) else value
