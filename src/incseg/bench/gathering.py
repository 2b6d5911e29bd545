"""``incseg bench extend``: what adding images in closed form costs, relative to predicting them, in one run."""

import copy
from collections.abc import Callable, Sequence

import torch

from incseg.batch import Batch
from incseg.bench.measure import hardware, median_milliseconds, median_milliseconds_in_turns
from incseg.console import Table
from incseg.models import Architecture, Segmenter
from incseg.models.closed_form import ClosedFormHead, Statistics
from incseg.models.devices import choose_device
from incseg.models.gather import Fit, feature_layout, gather

CLASSES, BATCH, BATCHES, ROUNDS = 21, 8, 2, 3
HEIGHT, WIDTH = 240, 320


def benchmark_extend(encoder: str = "resnet18", widths: Sequence[int] = (2048, 4096), device: str = "auto") -> Table:
    """Time per image of a forward pass, and of gathering statistics with the default width and others.

    Args:
        encoder: of a DeepLab-v3.
        widths: numbers of random features besides the default.
        device: ``cuda``, ``cpu`` or ``auto``.
    """
    place = choose_device(device)
    segmenter = _extended(encoder).to(place).eval()
    batches = _batches()
    chosen = feature_layout(segmenter, CLASSES).width
    cases = [(chosen, False), (chosen, True), *((width, False) for width in widths)]

    def predict() -> None:
        for batch in batches:
            segmenter.segment(batch.images.to(place))

    def gathering(width: int, mirrored: bool) -> Callable[[], None]:
        statistics = _empty(segmenter, width)
        return lambda: _discard(gather(segmenter, statistics, batches, Fit(mirrored=mirrored)))

    steps = [predict, *(gathering(width, mirrored) for width, mirrored in cases)]
    forward, *times = median_milliseconds_in_turns(steps, rounds=ROUNDS, repeats=1)
    solving = {width: _solving(segmenter, width, batches[:1], place) for width, _ in cases}
    rows = [
        [
            f"{width}{' (default)' if width == chosen else ''}{', mirrored too' if mirrored else ''}",
            f"{time / (BATCH * BATCHES):.1f}",
            f"{time / forward:.2f}",
            f"{solving[width] / 1e3:.2f}",
            f"{sum(tensor.nbytes for tensor in _empty(segmenter, width).state().values()) / 1e6:.1f}",
        ]
        for (width, mirrored), time in zip(cases, times, strict=True)
    ]
    note = (
        f"A forward pass of the extended network takes {forward / (BATCH * BATCHES):.1f} ms per image. Medians of "
        f"{ROUNDS} rounds over {BATCH * BATCHES} images in turns; the solve is needed twice per extension."
    )
    headers = ["random features", "ms per image", "forward passes", "solve, s", "statistics, MB"]
    return Table(f"{encoder}, {WIDTH}×{HEIGHT}, {hardware(place).name}", headers, rows, note)


def _extended(encoder: str) -> Segmenter:
    """A network as an extension leaves it: it keeps its original encoder, and its head is of the closed form."""
    segmenter = Segmenter(Architecture(encoder=encoder, decoder="deeplabv3"), [CLASSES])
    segmenter.keep_original(copy.deepcopy(segmenter.encoder))
    segmenter.use_head(ClosedFormHead(feature_layout(segmenter, CLASSES), [CLASSES]))
    return segmenter


def _batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (BATCH, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    coarse = torch.randint(0, CLASSES, (BATCH, HEIGHT // 16, WIDTH // 16), generator=generator)
    return [Batch(images, coarse.repeat_interleave(16, 1).repeat_interleave(16, 2))] * BATCHES


def _empty(segmenter: Segmenter, width: int) -> Statistics:
    layout = feature_layout(segmenter, CLASSES, width=width)
    return Statistics.empty(layout, segmenter.mean.device).with_classes(torch.ones(CLASSES))


def _solving(segmenter: Segmenter, width: int, batches: Sequence[Batch], place: torch.device) -> float:
    statistics = gather(segmenter, _empty(segmenter, width), batches, Fit())
    return median_milliseconds(lambda: _discard(statistics.solve(1.0)), place, seconds=0.0)


def _discard(_: object) -> None:
    """Benchmarks time a step that returns nothing."""
