"""One iteration of training: forward passes, losses, backward, and an update of the parameters that is finite."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from lightning.fabric import Fabric
from torch import Tensor

from incseg.batch import Batch, View, in_float32
from incseg.config import RunConfig
from incseg.engine.finite import UpdateGuard, Verdict
from incseg.engine.optimizer import build_optimizer, set_learning_rate
from incseg.engine.precision import unscale
from incseg.engine.quick_network import COMPILED_FROM, QuickStudent, Teacher, student_network, teacher_network
from incseg.engine.step_run import StepRun
from incseg.errors import InputError
from incseg.methods import Context, Method
from incseg.models import Segmenter
from incseg.models.easing import eased
from incseg.models.recompute import blocks
from incseg.seeding import seed_from


@dataclass(frozen=True)
class Iterations:
    """How the iterations of a run are computed."""

    config: RunConfig
    fabric: Fabric
    method: Method
    pixels: int
    """What the run trains on in all steps and epochs, about."""

    @property
    def quick(self) -> bool:
        """Whether to use what only a GPU has: kernels of our own, graphs, a compiler."""
        return self.config.engine.compile and self.fabric.device.type == "cuda"

    def networks(self, context: Context) -> tuple[QuickStudent, Teacher | None]:
        """Student and teacher of a step as an iteration calls them."""
        engine, crop = self.config.engine, self.config.data.crop_size
        together = self.config.optim.batch_size // self.fabric.world_size // engine.accumulate
        shape, quick = (together, 3, crop, crop), self.quick
        wanted = {"with_stages": self.method.needs_stages, "with_raw_stages": self.method.needs_raw_stages}
        compiled = self.pixels >= COMPILED_FROM * self.fabric.world_size
        captured = quick and not engine.recompute
        student = student_network(
            context.student, shape, self.fabric,
            quick=captured, compiled=compiled, recompute=engine.recompute, **wanted,
        )  # fmt: skip
        if context.teacher is None or not self.method.needs_teacher:
            return student, None
        return student, teacher_network(context.teacher, shape, self.fabric, quick=quick, compiled=compiled, **wanted)

    def prepare(self, student: Segmenter, network: QuickStudent, step: int) -> UpdateGuard:
        """Hand the network to Fabric, with an optimizer; returns what makes the updates."""
        has_kernel = self.fabric.device.type in ("cuda", "cpu")
        scales = self.config.engine.precision == "16-mixed"  # a loss scale must be looked at first
        fused = self.config.engine.compile and has_kernel and not scales
        optimizer = build_optimizer(student, self.config.optim, step=step, fused=fused)
        model, wrapped = self.fabric.setup(network, optimizer)
        return UpdateGuard(student, model, wrapped, self.config.engine.max_skipped, self.total)

    def train_on(self, run: StepRun, batch: Batch, iteration: int) -> dict[str, Tensor]:
        """One iteration; returns the loss terms."""
        with self._eased(run.context):
            return self._update(run, batch, iteration)

    def _eased(self, context: Context) -> AbstractContextManager[None]:
        """The networks of a step as a CPU computes them quickest, unless plain PyTorch is asked for."""
        if not self.config.engine.compile or self.fabric.device.type != "cpu":
            return nullcontext()
        return eased(*filter(None, (context.student, context.teacher)))

    def _update(self, run: StepRun, batch: Batch, iteration: int) -> dict[str, Tensor]:
        step, student, optimizer = run.step, run.context.student, run.guard.optimizer
        torch.manual_seed(seed_from(self.config.seed, step.index, iteration, self.fabric.global_rank))
        rate = self.config.optim.learning_rate_at(step.index, iteration / run.iterations)
        set_learning_rate(optimizer.param_groups, rate)
        view, terms = self._descend(run, batch)
        unscale(self.fabric, optimizer.optimizer)
        wrong = run.guard.judge(terms)
        if self.method.watches:
            self.method.observe(view, student, wrong)
            penalties = self.method.add_penalty_gradients(student)
            terms |= penalties
            wrong = torch.maximum(wrong, run.guard.judge(penalties)) if penalties else wrong
        run.guard.update(Verdict(iteration, terms, wrong))
        optimizer.zero_grad()
        return terms

    def _descend(self, run: StepRun, batch: Batch) -> tuple[View, dict[str, Tensor]]:
        """The gradients of a batch, if need be in pieces; with the last view, and the mean of the terms."""
        pieces = batch.pieces(self.config.engine.accumulate)
        found: list[Mapping[str, Tensor]] = []
        for piece in pieces:
            more = len(found) + 1 < len(pieces)
            with self.fabric.no_backward_sync(run.guard.model, enabled=more):
                view = self._view(run, piece)
                found.append(self.method.losses(view))
                self.fabric.backward(torch.stack(list(found[-1].values())).sum() / len(pieces))
            if more and len(found) == 1:
                run.guard.own_gradients()
        # Detached: they may wait to be read, and would keep the graph of their iteration until then.
        terms = [{name: value.detach() for name, value in each.items()} for each in found]
        if len(terms) == 1:
            return view, terms[0]
        return view, {name: torch.stack([each[name] for each in terms]).mean(dim=0) for name in terms[0]}

    def _view(self, run: StepRun, batch: Batch) -> View:
        short = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
        dtype = short.get(self.config.engine.precision, torch.float32) if self.quick else torch.float32
        outputs = in_float32(run.guard.model(batch.images).outputs)
        teacher_outputs = None if run.teacher is None else run.teacher(batch.images)
        fused = self.config.engine.compile
        return self.method.view(batch, outputs, teacher_outputs, run.step, fused=fused, computed_in=dtype)

    def total(self, values: Tensor) -> Tensor:
        """Summed over all processes."""
        if self.fabric.world_size == 1:
            return values
        total = values.clone()
        torch.distributed.all_reduce(total)  # Fabric's own waits for all processes first, and so for the device
        return total

    def check(self, student: Segmenter) -> None:
        """Refuse what saves no memory here, and to cut batches into pieces where that would change the objective."""
        if self.config.engine.recompute and not blocks(student.encoder):
            raise InputError(
                f"engine.recompute saves nothing with the encoder '{self.config.model.encoder}', in which no blocks "
                "were found that could be run again. Smaller crops or batches, or engine.accumulate, save memory."
            )
        pieces, share = self.config.engine.accumulate, self.config.optim.batch_size // self.fabric.world_size
        if share % pieces or share < 2 * pieces:
            raise InputError(
                f"engine.accumulate {pieces} cannot divide the {share} images that a device has of every batch: use a "
                "divisor that leaves at least two, for batch normalisation."
            )
        joining = [part.origin or type(part).__name__ for part in self.method.parts if part.joins_images]
        if pieces > 1 and joining:
            raise InputError(
                f"engine.accumulate cannot be used with '{joining[0]}': its loss compares the images of a batch with "
                "each other, so the mean over pieces would be another loss. A smaller optim.batch_size, or "
                "engine.recompute true, saves memory too."
            )
