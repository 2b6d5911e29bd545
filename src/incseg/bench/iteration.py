"""``incseg bench step``: the cost of a training iteration of each method relative to fine-tuning, in one run."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from incseg.bench.measure import hardware, median_milliseconds_in_turns, peak_extra_bytes, within_memory
from incseg.config import RunConfig, load_recipe, merge
from incseg.console import Table
from incseg.engine.assembly import build, launch
from incseg.errors import InputError
from incseg.models import Segmenter
from incseg.protocol import Protocol

BATCHES, ROUNDS = 4, 12
# Share of the pixels in which a teacher finds an old class: that of all classes in the masks of Pascal VOC.
FOREGROUND = 0.3
LONG_RUN = {"optim": {"epochs": 1_000_000}}  # only long runs are compiled, and those are the ones whose speed matters


def benchmark_step(
    methods: Mapping[str, Mapping[str, Any]],
    recipe: str = "shapes/4-2/overlapped",
    data_root: Path | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    foreground: float | None = None,
) -> Table:
    """Time and memory of a training iteration at step 1, without data loading, for ``ft`` and each method.

    Args:
        methods: what to call each in the table, and what makes it: ``method``, and settings of its own by section.
        recipe: a protocol or recipe with at least two steps.
        data_root: folder of its dataset.
        device: ``cuda``, ``cpu`` or ``auto``.
        settings: of the runs, by section and name.
        foreground: the share of the pixels in which the teacher finds an old class, on which UCD's cost depends; by
            default what it is in photographs.
    """
    foreground = FOREGROUND if foreground is None else foreground
    if not 0 <= foreground <= 1:
        raise InputError(f"--foreground {foreground} is no share of the pixels: give a number from 0 to 1.")
    methods = {"ft": {"method": "ft"}} | dict(methods)
    # A few batches are all that is loaded: no processes are started for them, and no images kept.
    layer = merge({"engine": {"accelerator": device}, "data": {"workers": 0, "cache": "none"}}, settings or {})
    layer = merge(layer, {"data": {"root": data_root}} if data_root else {})
    configs = [load_recipe(recipe, merge(merge(layer, own), LONG_RUN)) for own in methods.values()]
    if Protocol.parse(configs[0].protocol).task == "offline":
        raise InputError(f"{recipe} has a single step: choose a protocol or recipe with at least two.")
    with within_memory(configs[-1]):
        place, iterations = _prepared(configs, foreground)
        memory = [peak_extra_bytes(iterate, place) for iterate in iterations]
        times = median_milliseconds_in_turns(iterations, rounds=ROUNDS, repeats=BATCHES)
    rows = [
        [name, f"{time:.1f}", f"{time / times[0]:.2f}", "–" if extra is None else f"{extra / 2**30:.2f}"]
        for name, time, extra in zip(methods, times, memory, strict=True)
    ]
    headers = ["method", "ms per iteration", "relative to ft", "extra memory, GiB"]
    note = (
        f"Medians of {ROUNDS} rounds of {BATCHES} iterations; data loading is not included. The untrained teacher is "
        f"made to find an old class in {foreground:.0%} of the pixels."
    )
    return Table(f"{recipe}, step 1, {hardware(place).slug}", headers, rows, note)


def _prepared(configs: Sequence[RunConfig], foreground: float) -> tuple[torch.device, list[Callable[[], None]]]:
    """For each run, a function that trains one iteration of step 1."""
    fabric = launch(configs[0])
    with TemporaryDirectory() as folder:  # nothing is written: trainers are built, not run
        trainers = [build(config, Path(folder), fabric) for config in configs]
    for trainer in trainers:
        trainer.iterations.check(trainer.student)

    def iteration_of(index: int) -> Callable[[], None]:
        trainer = trainers[index]
        first, second = trainer.curriculum.steps[:2]
        # Importances and prototypes come from an earlier step: give them one iteration of it.
        run = trainer.prepare(first)
        trainer.iterations.train_on(run, next(iter(trainer.data.batches(first, run.images, epochs=1))), 0)
        trainer.method.end(run.context)
        run = trainer.prepare(second)
        batches = list(islice(trainer.data.batches(second, run.images, epochs=1), BATCHES))
        if run.context.teacher is not None:
            find_in(run.context.teacher, batches[0].images, foreground)
        done = 0

        def iterate() -> None:
            nonlocal done
            trainer.iterations.train_on(run, batches[done % len(batches)], done % run.iterations)
            done += 1

        return iterate

    return fabric.device, [iteration_of(index) for index in range(len(configs))]


@torch.no_grad()
def find_in(teacher: Segmenter, images: Tensor, foreground: float) -> None:
    """Shift an untrained teacher's biases so that it finds its classes in this share of the pixels.

    Untrained, it takes nearly all of them for some class, and losses on what it finds would cost more than in training.
    """
    head = teacher.trained_head
    scores = teacher(images).logits
    margins = (scores[:, 1:].amax(dim=1) - scores[:, 0]).flatten().float()
    shift = margins.quantile(1 - foreground)
    with_background = 1 if head.kind == "softmax" else 0  # elsewhere background has no bias
    for number, convolution in enumerate(head.heads):
        if isinstance(convolution, nn.Conv2d) and convolution.bias is not None:
            convolution.bias[with_background if number == 0 else 0 :] -= shift
