"""``incseg bench step``: the cost of a training iteration of each method relative to fine-tuning, in one run."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from incseg.bench.measure import hardware, median_milliseconds_in_turns, peak_extra_bytes
from incseg.config import RunConfig, load_recipe, merge
from incseg.console import Table
from incseg.engine.assembly import build, launch
from incseg.errors import InputError
from incseg.protocol import Protocol

BATCHES, ROUNDS = 4, 12


def benchmark_step(
    methods: Sequence[str],
    recipe: str = "shapes/4-2/overlapped",
    data_root: Path | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
) -> Table:
    """Time and memory of a training iteration at step 1, without data loading, for ``ft`` and each method.

    Args:
        methods: methods or sums of methods.
        recipe: a protocol or recipe with at least two steps.
        data_root: folder of its dataset.
        device: ``cuda``, ``cpu`` or ``auto``.
        settings: of the runs, by section and name.
    """
    names = list(dict.fromkeys(["ft", *methods]))
    layer = merge(
        merge({"engine": {"accelerator": device}}, settings or {}), {"data": {"root": data_root}} if data_root else {}
    )
    configs = [load_recipe(recipe, merge(layer, {"method": name})) for name in names]
    if Protocol.parse(configs[0].protocol).task == "offline":
        raise InputError(f"{recipe} has a single step: choose a protocol or recipe with at least two.")
    place, iterations = _prepared(configs)
    memory = [peak_extra_bytes(iterate, place) for iterate in iterations]
    times = median_milliseconds_in_turns(iterations, rounds=ROUNDS, repeats=BATCHES)
    rows = [
        [name, f"{time:.1f}", f"{time / times[0]:.2f}", "–" if extra is None else f"{extra / 2**30:.2f}"]
        for name, time, extra in zip(names, times, memory, strict=True)
    ]
    headers = ["method", "ms per iteration", "relative to ft", "extra memory, GiB"]
    note = f"Medians of {ROUNDS} rounds of {BATCHES} iterations; data loading is not included."
    return Table(f"{recipe}, step 1, {hardware(place).slug}", headers, rows, note)


def _prepared(configs: Sequence[RunConfig]) -> tuple[torch.device, list[Callable[[], None]]]:
    """For each run, a function that trains one iteration of step 1."""
    fabric = launch(configs[0])
    with TemporaryDirectory() as folder:  # nothing is written: trainers are built, not run
        trainers = [build(config, Path(folder), fabric) for config in configs]

    def iteration_of(index: int) -> Callable[[], None]:
        trainer = trainers[index]
        first, second = trainer.curriculum.steps[:2]
        # Importances and prototypes come from an earlier step: give them one iteration of it.
        run = trainer.prepare(first)
        trainer.iterations.train_on(run, next(iter(trainer.data.batches(first, run.images, epochs=1))), 0)
        trainer.method.end(run.context)
        run = trainer.prepare(second)
        batches = list(islice(trainer.data.batches(second, run.images, epochs=1), BATCHES))
        done = 0

        def iterate() -> None:
            nonlocal done
            trainer.iterations.train_on(run, batches[done % len(batches)], done % run.iterations)
            done += 1

        return iterate

    return fabric.device, [iteration_of(index) for index in range(len(configs))]
