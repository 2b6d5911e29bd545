"""``incseg bench train``: iterations per second of real training, data included, for each method beside fine-tuning."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from lightning.fabric import Fabric

from incseg.bench.iteration import LONG_RUN
from incseg.bench.measure import hardware, wait_for, within_memory
from incseg.bench.photos import PROTOCOL, photo_folder
from incseg.config import RunConfig, load_recipe, merge
from incseg.console import Console, Table
from incseg.engine.admission import check_batch_size
from incseg.engine.assembly import build, check_repeats, launch
from incseg.errors import InputError
from incseg.protocol import Protocol

WARM_UP = 8  # iterations before the clock starts: compilation, the first batches
SECONDS, FEWEST = 10.0, 4  # how long each method is measured, and how many iterations at least
SMALL = {"model": {"encoder": "resnet18"}, "data": {"crop_size": 256}}  # with generated photos, unless settings differ


class Pace(NamedTuple):
    """What was measured of a method."""

    iterations: int
    seconds: float
    waited: float
    """Seconds in which the training process waited for the next batch."""


def benchmark_train(
    methods: Sequence[str],
    recipe: str = "",
    data_root: Path | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
) -> Table:
    """Train step 1 for some seconds with ``ft`` and each method, as a run does; weights are random unless given.

    Args:
        methods: methods or sums of methods.
        recipe: a protocol or recipe with at least two steps; empty: generated photos of 500×375 pixels.
        data_root: folder of its dataset.
        device: ``cuda``, ``cpu`` or ``auto``.
        settings: of the run, by section and name.
    """
    with chosen_data(recipe, data_root, device, settings, SMALL) as (name, layer):
        names = list(dict.fromkeys(["ft", *methods]))
        untrained = merge({"model": {"weights": "none"}}, layer)
        configs = [load_recipe(name, merge(merge(untrained, LONG_RUN), {"method": method})) for method in names]
        if Protocol.parse(configs[0].protocol).task == "offline":
            raise InputError(f"{name} has a single step: choose a protocol or recipe with at least two.")
        check_batch_size(configs[0])
        fabric = launch(configs[0])
        paces = [_pace(config, fabric) for config in configs]
    return _table(names, paces, configs[0], fabric)


@contextmanager
def chosen_data(
    recipe: str,
    data_root: Path | None,
    device: str,
    settings: Mapping[str, Any] | None,
    otherwise: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The recipe to measure and its settings; without one generated photos, and the settings ``otherwise``."""
    given = merge({"engine": {"accelerator": device}}, settings or {})
    if recipe:
        yield recipe, merge(given, {"data": {"root": data_root}} if data_root else {})
        return
    if data_root is not None:
        raise InputError(
            "--data-root needs --recipe PROTOCOL, which says how to read it: --recipe voc/15-5/overlapped."
        )
    with photo_folder() as folder:
        yield PROTOCOL, merge(merge(otherwise, given), {"data": {"root": folder}})


def _pace(config: RunConfig, fabric: Fabric) -> Pace:
    with within_memory(config), TemporaryDirectory() as folder:  # nothing is written: the trainer is not run
        trainer = build(config, Path(folder), fabric, Console(quiet=True))
        trainer.iterations.check(trainer.student)
        check_repeats(config.optim.batch_size, [len(indices) for indices in trainer.curriculum.indices])
        first, second = trainer.curriculum.steps[:2]
        run = trainer.prepare(first)  # importances and prototypes come from an earlier step
        trainer.iterations.train_on(run, next(iter(trainer.data.batches(first, run.images, epochs=1))), 0)
        trainer.method.end(run.context)
        run = trainer.prepare(second)
        batches = trainer.data.batches(second, run.images, epochs=10**6)
        for iteration in range(WARM_UP):
            trainer.iterations.train_on(run, next(batches), iteration % run.iterations)
        wait_for(fabric.device)
        waited, done, began = 0.0, 0, time.perf_counter()
        while done < FEWEST or time.perf_counter() - began < SECONDS:
            before = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - before
            trainer.iterations.train_on(run, batch, (WARM_UP + done) % run.iterations)
            done += 1
        wait_for(fabric.device)
        return Pace(done, time.perf_counter() - began, waited)


def _table(names: Sequence[str], paces: Sequence[Pace], config: RunConfig, fabric: Fabric) -> Table:
    per_second = [pace.iterations / pace.seconds for pace in paces]
    rows = [
        [
            name,
            f"{rate:.2f}",
            f"{rate * config.optim.batch_size:.0f}",
            f"{per_second[0] / rate:.2f}",
            f"{pace.waited / pace.seconds:.0%}",
        ]
        for name, rate, pace in zip(names, per_second, paces, strict=True)
    ]
    data, model = config.data, config.model
    title = f"{model.encoder}, {config.optim.batch_size} × {data.crop_size}², {hardware(fabric.device).name}"
    headers = ["method", "iterations/s", "images/s", "time relative to ft", "waiting for data"]
    note = (
        f"Step 1 of {config.protocol}, data.cache {data.cache}, data.workers {data.workers}, at least {SECONDS:g} s "
        f"each after {WARM_UP} iterations."
    )
    return Table(title, headers, rows, note)
