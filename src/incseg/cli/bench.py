"""``incseg bench``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from incseg.cli.arguments import OptionalFolder, takes_settings
from incseg.cli.early import refuse_methods
from incseg.config import Layer, merge
from incseg.console import Console
from incseg.errors import InputError

STEP_RECIPE = "shapes/4-2/overlapped"
OF_THE_MACHINE = {"accelerator", "devices", "nodes", "precision"}  # settings of the engine that methods share

if TYPE_CHECKING:
    from incseg.study.comparison_plan import Entrant


@takes_settings("data.crop_size", "data.cache", "data.workers", "model.", "optim.batch_size", "engine.")
def bench(
    what: tyro.conf.Positional[Literal["contrastive", "losses", "step", "train", "loader", "extend"]],
    out: Path = Path("benchmarks/results"),
    sizes: tuple[int, ...] = (),
    encoder: str = "resnet18",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    method: tuple[str, ...] = ("mib", "mib+ucd"),
    recipe: str = "",
    data_root: OptionalFolder = None,
    foreground: float | None = None,
    settings: Layer | None = None,
) -> None:
    """Measure on this machine, side by side in one run.

    'contrastive' is forward and backward of the UCD loss: dense as in the authors' release, eager, chunked, triton; it
    writes a table and a plot with date and hardware. 'losses' is cross-entropy and distillation from a network's coarse
    logits: at the size of the image, and by kernels that never have it. 'step' is a training iteration of each method
    beside ft, without loading data; 'train' is real training, data included. 'loader' is how many training crops a
    second are loaded, by the number of processes, and cut from images that are kept. 'extend' is what adding images in
    closed form costs beside predicting them.

    Examples: incseg bench train --method ft mib mib+ucd --model.encoder resnet18 --data.crop-size 256;
    incseg bench loader --recipe voc/15-5/overlapped --data-root DATA/VOC2012

    Args:
        what: what to measure.
        out: contrastive: folder for the table and the plot.
        sizes: contrastive: numbers of anchor pixels (default: 2048 to 49152 on a GPU, 1024 to 4096 on a CPU).
        encoder: extend: of the DeepLab-v3 that is extended; elsewhere it is --model.encoder.
        device: where to measure.
        method: step, train: the methods to compare with ft; step: each with settings of its own if it is written in
            quotes, as in "mib+ucd --ucd.teacher old+new".
        recipe: step, train, loader: the protocol or recipe that says network, crop and batch (default: of step
            shapes/4-2/overlapped, of the others generated photos of 500×375 pixels).
        data_root: step, train, loader: folder of its dataset.
        foreground: step: share of the pixels in which the teacher finds an old class (default: 0.3, as in VOC's masks).
        settings: step, train, loader: any setting of a run, by section and name.
    """
    if what in ("contrastive", "losses", "extend") and settings:
        raise InputError(f"'incseg bench {what}' takes no settings of a run: leave out --SECTION.NAME.")
    if what == "contrastive":
        from incseg.bench.contrastive_loss import benchmark_contrastive

        benchmark_contrastive(out, sizes or None, device)
    elif what == "losses":
        from incseg.bench.coarse_losses import benchmark_losses

        Console().show(benchmark_losses(device))
    elif what == "extend":
        from incseg.bench.gathering import benchmark_extend

        Console().show(benchmark_extend(encoder, device=device))
    elif what == "train":
        from incseg.bench.end_to_end import benchmark_train

        Console().show(benchmark_train(method, recipe, data_root, device, settings))
    elif what == "loader":
        from incseg.bench.loader import benchmark_loader

        Console().show(benchmark_loader(recipe, data_root, device, settings))
    else:
        _bench_step(method, recipe or STEP_RECIPE, data_root, device, settings or {}, foreground)


def _bench_step(
    methods: Sequence[str],
    recipe: str,
    data_root: Path | None,
    device: str,
    settings: Layer,
    foreground: float | None,
) -> None:
    refuse_methods([recipe], lambda: _entrants(methods), settings, trust=False)

    from incseg.bench.iteration import benchmark_step
    from incseg.study.planned_run import settings_for

    measured = {
        each.written: {
            **merge(settings_for(each.method, settings), each.settings),
            "method": each.method,
            "preset": each.presets,
        }
        for each in _entrants(methods)
    }
    Console().show(benchmark_step(measured, recipe, data_root, device, settings_for("ft", settings), foreground))


def _entrants(methods: Sequence[str]) -> "list[Entrant]":
    from incseg.cli.studies import entrant

    found = [entrant(text, option="--method") for text in methods]
    for each in found:
        if alone := OF_THE_MACHINE & set(each.settings.get("engine", {})):
            name = f"--engine.{min(alone)}"
            raise InputError(f"{name} in --method '{each.written}' is that of all methods: give it outside the quotes.")
    return found
