"""The trainer: all steps of a protocol, one after another; an interrupted run resumes and ends with the same bits."""

import copy
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor

from incseg.config import RunConfig
from incseg.curriculum.curriculum import Curriculum, Library
from incseg.engine.checkpoint import Checkpoint, FinishedStep, Pace
from incseg.engine.cost import StepClock, spent_on
from incseg.engine.evaluator import (
    number_scored,
    run_result,
    save_pictures,
    score_step,
    step_entry,
    step_history,
)
from incseg.engine.finite import given_up, skipped
from incseg.engine.image_cache import ImageCache
from incseg.engine.journal import Journal
from incseg.engine.left_out import LeftOut, over_all
from incseg.engine.machine import anywhere, enough_memory_to_score, threads_of_step
from incseg.engine.optimizer import freeze_by_rate, freeze_norm, freeze_unused, restore
from incseg.engine.precision import load_scale, lower_scale, scale_state
from incseg.engine.signals import StopRequests
from incseg.engine.step_data import StepData
from incseg.engine.step_run import StepRun
from incseg.engine.training_iteration import Iterations
from incseg.loading import TrainingImages, TrainingSet
from incseg.loading.remembered import ScoredMemory
from incseg.methods import Context, Method
from incseg.models import Segmenter
from incseg.models.devices import placed
from incseg.models.pretrained import original_encoder
from incseg.models.storage import StepHistory, describe_model, load_model, save_model
from incseg.models.synchronised import synchronise
from incseg.protocol import Setting, Step
from incseg.run_folder import RunFolder, write_json
from incseg.seeding import seed_from


@dataclass
class Trainer:
    """Trains the steps of a curriculum with a method; see :meth:`run`."""

    config: RunConfig
    fabric: Fabric
    curriculum: Curriculum
    method: Method
    student: Segmenter
    folder: RunFolder
    journal: Journal
    cache: ImageCache
    """The training images, or where they are read."""
    header: Mapping[str, Any]
    """The head of ``result.json``."""
    first_step_given: bool = False
    """The student already knows the classes of step 0, which is then only scored."""
    first_step_copied: bool = False
    """Step 0 was copied from another run just now: loggers have not heard of it yet."""
    history: Sequence[StepHistory] = ()
    """The steps the student has learnt so far; saved in every model."""
    stop: StopRequests = field(default_factory=StopRequests)
    """Whether the run was asked to stop before its end."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """What could not be read in the step in training."""
    clock: StepClock = field(default_factory=StepClock)
    """The time of the step in training."""
    scored: ScoredMemory = field(default_factory=ScoredMemory)
    """The images that every step is scored on."""

    @property
    def iterations(self) -> Iterations:
        """How they are computed."""
        return Iterations(self.config, self.fabric, self.method, self._pixels)

    @cached_property
    def _pixels(self) -> int:
        """What the run trains on, if each step sees its own images; finished steps count, as when they were trained."""
        steps = zip(self.curriculum.steps, self.curriculum.indices, strict=True)
        crops = sum(len(images) * self.config.optim.epochs_at(step.index) for step, images in steps)
        return crops * self.config.data.crop_size**2

    @property
    def data(self) -> StepData:
        """The images of the steps."""
        return StepData(self.config, self.fabric, self.journal, self.left_out, self.cache)

    def run(self) -> dict[str, Any]:
        """Train and score every step that is not finished yet; return the result."""
        entries: list[dict[str, Any]] = []
        result: dict[str, Any] = {}
        for step in self.curriculum.steps:
            finished = FinishedStep.load_scored(self.folder, step.index)
            entries.append(self._train_and_score(step) if finished is None else self._load_step(step, finished))
            if finished is not None and step.index == 0 and self.method.lacks_statistics:
                entries[0] = self._conclude_first_step(step)
            elif step.index == 0 and self.first_step_copied:
                self.journal.pass_on_score(0, entries[0]["miou"])
                self.journal.show_pictures(0, self.folder.predictions(0))
            unreadable = over_all(self.curriculum.unreadable, entries) if self._skips else None
            result = run_result(self.header, self.curriculum.classes[: step.num_classes], entries, unreadable)
            if self.fabric.is_global_zero:
                write_json(self.folder.result, result)
        return result

    @property
    def _skips(self) -> bool:
        return self.config.data.on_error == "skip"

    def _load_step(self, step: Step, finished: FinishedStep) -> dict[str, Any]:
        """Load what an earlier process has finished."""
        self._load_memory(finished.memory)
        self.student, _ = load_model(self.folder.model(step.index))
        self.history = describe_model(self.folder.model(step.index)).history
        self.journal.remember_score(step.index, finished.scores["miou"])
        return finished.scores

    def _conclude_first_step(self, step: Step) -> dict[str, Any]:
        """Take the network of another run's step 0, and give it the head of this run's method."""
        self.left_out, self.clock = LeftOut(self._skips, self.journal.say), StepClock()
        self.clock.continue_from(**spent_on(self.folder, step.index))
        self.history = self.history[:-1]
        images = self._solve(step)
        if self.fabric.is_global_zero:
            self.folder.scores(step.index).unlink()  # those of the other run's head; killed from here on, it is redone
        return self._finish(step, images)

    def _train_and_score(self, step: Step) -> dict[str, Any]:
        images, self.left_out, self.clock = 0, LeftOut(self._skips, self.journal.say), StepClock()
        if self.first_step_given and step.index == 0:
            self.student.to(self.fabric.device)
        elif self.method.solves and step.index > 0:
            images = self._solve(step)
        else:
            images = self._learn(step)
        return self._finish(step, images)

    def _learn(self, step: Step) -> int:
        """Train a step; returns the number of its images. What only training needs is let go of before scoring."""
        with threads_of_step(step.index):
            run = self.prepare(step)
            self._train(run)
        return run.images.shares[0]

    def _finish(self, step: Step, images: int) -> dict[str, Any]:
        """Score a step and mark it as finished."""
        with self.clock.scoring():
            entry = self._score(step, images)
        if self.fabric.is_global_zero:
            FinishedStep(self.method.memory(), entry, self.clock.spent).save(self.folder, step.index)
        self.fabric.barrier()
        return entry

    def _solve(self, step: Step) -> int:
        """Let the method conclude a step without training; returns the number of its images."""
        own = self.curriculum.training_images(step, self.config.data.crop_size)
        self.student.to(self.fabric.device)
        self.journal.mention(f"{self.header['method']} · step {step.index} in closed form: {len(own)} images")
        self.method.solve(self._context(step, own, teacher=None))
        return len(own)

    def _context(self, step: Step, own: TrainingImages, teacher: Segmenter | None) -> Context:
        return Context(
            step,
            self.student,
            teacher,
            batches=lambda epochs: self.data.batches(step, TrainingSet(own), epochs),
            library=Library(self.curriculum, self.config.data.crop_size),
            optim=self.config.optim,
            stable_curvature=self.config.optim.stable_curvature(step.index),
            whole_images=lambda: self.data.whole_images(own),
            images_as_scored=lambda: self.data.images_as_scored(own),
            pixel_counts=lambda: self.data.pixel_counts(own, step.num_classes),
            pretrained_encoder=lambda: original_encoder(self.student, self.config.model.weights),
            images_overlap=self.curriculum.protocol.setting is Setting.OVERLAPPED,
            labels_everything=step.index == 0 or self.method.keeps_data,
            autocast=self.fabric.autocast,
            seed=seed_from(self.config.seed, "method", step.index),
            say=self.journal.say,
            scored_as_they_are=self.data.scored_scale is None,
            fused=self.config.engine.compile,
        )

    def prepare(self, step: Step) -> StepRun:
        """Prepare a step: the student becomes the teacher, the classifier grows, the method's parts begin."""
        if self.fabric.device.type == "cuda":
            gc.collect()  # graphs of the step before hold memory, and may not be freed while others are captured
        teacher = None
        self.student.keep_original(None)  # only heads that are solved look at it, and training leaves it unused
        if step.index > 0:
            teacher = copy.deepcopy(self.student).eval().requires_grad_(False).to(self.fabric.device)
            torch.manual_seed(seed_from(self.config.seed, "head", step.index))
            if step.new:
                self.student.trained_head.grow(len(step.new))
        own = self.curriculum.training_images(step, self.config.data.crop_size, keep_old=self.method.keeps_data)
        if self.fabric.world_size > 1:
            synchronise(self.student)
        self.student.to(self.fabric.device).train()
        self.student.requires_grad_(True)  # what an earlier step froze, this step may train
        if step.index > 0 and self.config.optim.freeze_norm:
            freeze_norm(self.student)
        freeze_by_rate(self.student, self.config.optim, step.index)
        context = self._context(step, own, teacher)
        self.method.begin(context)
        images = TrainingSet(own, self.method.replay(context))
        active = [part for part in self.method.parts if teacher is not None or not part.needs_teacher]
        uses_stages = any(part.needs_stages or part.needs_raw_stages for part in active)
        freeze_unused(self.student, self.config.data.crop_size, with_stages=uses_stages)
        network, quick_teacher = self.iterations.networks(context)
        addresses = self.data.addresses(step, images, self.config.optim.epochs_at(step.index))
        pace = Pace(addresses.per_epoch, self.config.engine.checkpoint_every)
        guard = self.iterations.prepare(self.student, network, step.index)
        return StepRun(context, images, addresses, quick_teacher, guard, pace)

    def _train(self, run: StepRun) -> None:
        start = self._resume(run)
        epochs = self.config.optim.epochs_at(run.step.index)
        batches = self.data.batches(run.step, run.images, epochs, start)  # may decode all images first
        self.journal.begin_step(run.step.index, run.iterations, run.per_epoch, start)
        with self.stop.deferred():
            for iteration, batch in enumerate(batches, start):
                terms = self.iterations.train_on(run, batch, iteration)
                self._record(run, terms, done=iteration + 1)
        self.journal.end_step()
        self._share_statistics()
        self.method.end(run.context)

    def _share_statistics(self) -> None:
        """Give all processes the statistics of the first: rare kinds of normalisation are not synchronised."""
        if self.fabric.world_size > 1:
            for buffer in self.student.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def _report_skipped(self, run: StepRun) -> None:
        """Say which updates were skipped; stop when that goes on."""
        for verdict in run.guard.read():
            where, values = f"{run.name}, iteration {verdict.iteration + 1}", self._global_means(verdict.terms)
            if lower_scale(self.fabric):  # float16 tries scales that are too large, now and then
                continue
            self.journal.say(skipped(where, values, run.image_names(verdict.iteration)))
            if run.guard.exhausted(run.iterations):
                rate = "learning-rate" if run.step.index == 0 else "incremental-learning-rate"
                raise given_up(where, values, run.guard.in_a_row, rate)

    def _record(self, run: StepRun, terms: Mapping[str, Tensor], done: int) -> None:
        """After an iteration: show the progress, and every so often write a log line and a checkpoint."""
        logs = done == run.iterations or done % self.config.engine.log_every == 0
        due = done % run.pace.every == 0 and anywhere(self.fabric.is_global_zero and run.pace.has_waited, self.fabric)
        if run.guard.waits or logs or due:
            self._report_skipped(run)
        if logs:
            rate = self.config.optim.learning_rate_at(run.step.index, (done - 1) / run.iterations)
            values = self._global_means(terms) | {"learning_rate": rate}
            self.journal.log(run.name, done, -(-done // run.per_epoch), values)
        self.journal.advance(done)
        stops = self._must_stop(logs)
        if stops or (due and not run.guard.in_a_row):  # of a run that goes wrong, the last good one is kept
            self._save_checkpoint(run, done)
        if stops:
            self.stop.obey()

    def _must_stop(self, logs: bool) -> bool:
        """Whether to save and stop; several processes agree only when they log, as they then wait for each other."""
        asked = bool(self.stop.reason)
        return asked if self.fabric.world_size == 1 else logs and anywhere(asked, self.fabric)

    def _global_means(self, terms: Mapping[str, Tensor]) -> dict[str, float]:
        """The loss terms of the whole batch, the same in all processes, so that all continue or all stop."""
        stacked = torch.stack([value.detach().float() for value in terms.values()])
        means = cast(Tensor, self.fabric.all_reduce(stacked, reduce_op="mean"))
        return dict(zip(terms, means.tolist(), strict=True))

    def _save_checkpoint(self, run: StepRun, done: int) -> None:
        self.left_out.share(self.fabric.world_size)
        if self.fabric.is_global_zero:
            model, optimizer = self.student.state_dict(), run.guard.optimizer.state_dict()
            checkpoint = Checkpoint(
                run.step.index,
                done,
                model,
                optimizer,
                self.method.memory(),
                left_out=sorted(self.left_out.training),
                scale=scale_state(self.fabric),
                seconds=self.clock.seconds,
            )
            checkpoint.save(self.folder)
        self.fabric.barrier()
        run.pace.saved()

    def _resume(self, run: StepRun) -> int:
        """Load the checkpoint of this step, if there is one; returns the iteration to continue with."""
        checkpoint = Checkpoint.load(self.folder, run.step.index)
        if checkpoint is None:
            return 0
        self.student.load_state_dict(checkpoint.model)
        restore(cast(torch.optim.SGD, run.guard.optimizer.optimizer), checkpoint.optimizer)
        run.guard.keep_statistics()
        load_scale(self.fabric, checkpoint.scale)
        self._load_memory(checkpoint.memory)
        self.left_out.training.update(checkpoint.left_out)
        self.clock.continue_from(checkpoint.seconds)
        self.journal.mention(f"resuming {run.name} at iteration {checkpoint.iteration}")
        return checkpoint.iteration

    def _load_memory(self, memory: Mapping[str, Tensor]) -> None:
        self.method.load_memory({key: placed(value, self.fabric.device) for key, value in memory.items()})

    def _score(self, step: Step, images: int) -> dict[str, Any]:
        """Score the student on all processes together; save the model and a few pictures."""
        rank, world_size, device = self.fabric.global_rank, self.fabric.world_size, self.fabric.device
        share, note = (rank, world_size), self.left_out.from_scoring
        memory = self.scored if len(self.curriculum.steps) > 1 else None
        with enough_memory_to_score(self.config):
            confusion = score_step(self.student, self.curriculum, step, self.config, device, *share, note, memory)
        self.left_out.share(world_size)
        confusion = cast(Tensor, self.fabric.all_reduce(confusion, reduce_op="sum"))
        classes = self.curriculum.classes[: step.num_classes]
        scored = number_scored(self.curriculum, step) - len(self.left_out.scoring)
        domains = [self.curriculum.domains_of(other) for other in self.curriculum.steps[: step.index + 1]]
        unlabelled = self.curriculum.unlabelled(step)
        entry = step_entry(step, classes, images, confusion.cpu(), scored, domains, unlabelled) | self.left_out.entry()
        if not (self.first_step_given and step.index == 0):
            self.history = [*self.history, self._history_of(entry)]
        if self.fabric.is_global_zero:
            colours = self.header["colours"]
            save_model(self.student, classes, self.folder.model(step.index), self.history, colours)
            names, pictured = self.curriculum.pictured_images(step, self.config.engine.pictures)
            save_pictures(self.student, names, pictured, self.folder.predictions(step.index), colours, note)
        self.journal.score(step.index, entry["miou"])
        self.journal.show_pictures(step.index, self.folder.predictions(step.index))
        return entry

    def _history_of(self, entry: Mapping[str, Any]) -> StepHistory:
        optim = self.config.optim.model_dump()
        if self.method.solves and entry["step"] > 0:  # nothing was trained; a later extension may be, at this rate
            optim = {"learning_rate": optim["learning_rate"]}
        facts = {
            **optim,
            "crop_size": self.config.data.crop_size,
            "data": self.curriculum.source.name,
            "validation_images": entry["scored_images"],
        }
        return step_history(self.header, entry, facts)
