"""``incseg bench``."""

from pathlib import Path
from typing import Literal

import tyro

from incseg.cli.arguments import OptionalFolder
from incseg.console import Console


def bench(
    what: tyro.conf.Positional[Literal["contrastive", "losses", "step", "extend"]],
    out: Path = Path("benchmarks/results"),
    sizes: tuple[int, ...] = (),
    encoder: str = "resnet18",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    method: tuple[str, ...] = ("mib", "mib+ucd"),
    recipe: str = "shapes/4-2/overlapped",
    data_root: OptionalFolder = None,
) -> None:
    """Measure on this machine, side by side in one run.

    'contrastive' is forward and backward of the UCD loss: dense as in the authors' release, eager, chunked, triton; it
    writes a table and a plot with date and hardware. 'losses' is cross-entropy and distillation from a network's coarse
    logits: at the size of the image, and by kernels that never have it. 'step' is a training iteration of each method
    beside ft. 'extend' is what adding images in closed form costs beside predicting them.

    Args:
        what: what to measure.
        out: contrastive: folder for the table and the plot.
        sizes: contrastive: numbers of anchor pixels (default: 2048 to 49152 on a GPU, 1024 to 4096 on a CPU).
        encoder: extend: of the DeepLab-v3 that is extended.
        device: where to measure.
        method: step: the methods to compare with ft.
        recipe: step: the protocol or recipe that says network, crop and batch.
        data_root: step: folder of its dataset.
    """
    if what == "contrastive":
        from incseg.bench.contrastive_loss import benchmark_contrastive

        benchmark_contrastive(out, sizes or None, device)
    elif what == "losses":
        from incseg.bench.coarse_losses import benchmark_losses

        Console().show(benchmark_losses(device))
    elif what == "extend":
        from incseg.bench.gathering import benchmark_extend

        Console().show(benchmark_extend(encoder, device=device))
    else:
        from incseg.bench.iteration import benchmark_step

        Console().show(benchmark_step(method, recipe, data_root, device))
