"""``incseg bench loader``: training crops per second, by the number of loading processes, and from images kept."""

import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from incseg.batch import Batch
from incseg.bench.end_to_end import chosen_data
from incseg.bench.measure import hardware, wait_for
from incseg.config import load_recipe
from incseg.console import Table
from incseg.curriculum import build_curriculum
from incseg.engine.assembly import check_repeats
from incseg.loading import BatchAddresses, TrainingSet, device_loader, training_loader
from incseg.loading.decoded import KeptSplit, Measured
from incseg.loading.resampling import BatchCutter
from incseg.models.devices import choose_device
from incseg.protocol import Protocol

SECONDS, FEWEST = 3.0, 2  # how long each way is measured, and how many batches at least
CROP = {"data": {"crop_size": 512}}


def benchmark_loader(
    recipe: str = "", data_root: Path | None = None, device: str = "auto", settings: Mapping[str, Any] | None = None
) -> Table:
    """Crops per second of the images of step 0, read from files, and cut from images that were decoded before.

    Args:
        recipe: a protocol or recipe; empty: generated JPEGs of 500×375 pixels, crops of 512.
        data_root: folder of its dataset.
        device: where crops are cut from kept images: ``cuda``, ``cpu`` or ``auto``.
        settings: of the run, by section and name.
    """
    place = choose_device(device)
    with chosen_data(recipe, data_root, device, settings, CROP) as (name, layer):
        config = load_recipe(name, layer)
        size, crop = config.optim.batch_size, config.data.crop_size
        curriculum = build_curriculum(Protocol.parse(config.protocol), config.data)
        check_repeats(size, [len(curriculum.indices[0])])
        images = TrainingSet(curriculum.training_images(curriculum.steps[0], crop))
        addresses = BatchAddresses(len(images.own), size, epochs=10**6, seed=config.seed)
        rows = [
            [name, *_numbers(batches, processes, size, place)]
            for name, processes, batches in _ways(images, addresses, crop, place)
        ]
    headers = ["images from", "images/s", "ms per image and process"]
    note = f"Batches of {size}, at least {SECONDS:g} s each, once what was prepared ahead is used up."
    return Table(f"crops of {crop} pixels, {hardware(torch.device('cpu')).name}, {place}", headers, rows, note)


def _ways(
    images: TrainingSet, addresses: BatchAddresses, crop: int, place: torch.device
) -> Iterator[tuple[str, int, Iterator[Batch]]]:
    """What to call it, how many processes load, and the batches on the device; one after another."""
    on_gpu, cores = place.type == "cuda", os.cpu_count() or 1
    for count in sorted({0, cores, *(2**power for power in range(8) if 2**power < cores)}):
        batches = training_loader(images, addresses, count, on_gpu)
        yield f"files, {_processes(count)}", count, (batch.to(place) for batch in batches)
    measured = Measured.of(images.own.split, images.own.indices)
    decoded = measured.decoded(torch.device("cpu"))
    batches = training_loader(images.reading(KeptSplit(images.own.split, decoded)), addresses, cores, on_gpu)
    yield f"RAM, {_processes(cores)}", cores, (batch.to(place) for batch in batches)
    if on_gpu:
        decoded = measured.decoded(place)
        cut = partial(BatchCutter(decoded, crop), tables=images.tables.to(place))
        yield "the GPU, which cuts them", 1, device_loader(images, decoded, cut, addresses, in_process=True)


def _numbers(batches: Iterator[Batch], processes: int, size: int, device: torch.device) -> list[str]:
    """Images per second, and milliseconds per image of each process."""
    for _ in range(1 + 2 * processes):  # a loader has two batches per process ready
        next(batches)
    wait_for(device)
    done, began = 0, time.perf_counter()
    while done < FEWEST or time.perf_counter() - began < SECONDS:
        next(batches)
        done += 1
    wait_for(device)
    seconds = time.perf_counter() - began
    return [f"{done * size / seconds:.0f}", f"{1e3 * seconds * max(1, processes) / (done * size):.2f}"]


def _processes(count: int) -> str:
    return f"{count or 'no'} loading process{'' if count == 1 else 'es'}"
