"""``incseg memory``: which images of a run to keep, for the day when more classes are to be learnt."""

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from incseg.config import RunConfig, from_yaml, merge, validate
from incseg.console import Console
from incseg.curriculum import Curriculum, build_curriculum
from incseg.curriculum.old_images import keep_balanced
from incseg.engine.admission import check_memory_run
from incseg.files import naming
from incseg.images import index_image
from incseg.protocol import BACKGROUND, IGNORE, Protocol, Step
from incseg.run_folder import RunFolder


@dataclass(frozen=True)
class KeptMemory:
    """What was kept, and where it lies."""

    folder: Path
    images: int
    per_class: Mapping[str, int]
    """Kept images by the class they are labelled with."""
    of: int
    """The images to choose from."""


def keep_images(run: Path, keep: int, out: Path, data_root: Path | None, console: Console) -> KeptMemory:
    """Write a folder with some of the images that a run has learnt from, with the labels that it saw of them."""
    folder = RunFolder(run)
    check_memory_run(run, keep, out)
    curriculum = _curriculum(from_yaml(folder.config), data_root, console)
    steps = [step for step in curriculum.steps if step.index in folder.finished_steps]
    learnt = _learnt_in(curriculum, steps)
    candidates, by_step = sorted(learnt), {step.index: curriculum.shown(step) for step in steps}
    shown = [frozenset().union(*(by_step[step.index][i] for step in learnt[i])) for i in candidates]
    chosen = keep_balanced(shown, keep)
    channels = sorted({channel for step in steps if len(curriculum.indices[step.index]) for channel in step.new})
    for position in chosen:
        _write_image(curriculum, candidates[position], learnt[candidates[position]], channels, out)
    names = [curriculum.source.train.ids[candidates[position]] for position in chosen]
    _write_lists(out, [curriculum.classes[channel] for channel in (BACKGROUND, *channels)], names)
    counts = Counter(channel for position in chosen for channel in shown[position])
    return KeptMemory(out, len(chosen), {curriculum.classes[c]: counts[c] for c in channels}, len(candidates))


def _curriculum(config: RunConfig, data_root: Path | None, console: Console) -> Curriculum:
    moved = {"data": {"root": data_root}} if data_root is not None else {}
    config = validate(merge(config.model_dump(), moved))
    return build_curriculum(Protocol.parse(config.protocol), config.data.after_training, console.say, console.mention)


def _learnt_in(curriculum: Curriculum, steps: list[Step]) -> dict[int, list[Step]]:
    """Training image → the steps that learnt from it."""
    learnt: dict[int, list[Step]] = {}
    for step in steps:
        for index in curriculum.indices[step.index]:
            learnt.setdefault(index, []).append(step)
    return learnt


def _write_image(curriculum: Curriculum, index: int, steps: list[Step], channels: list[int], out: Path) -> None:
    """The image as it is, and a mask of the classes that these steps saw in it.

    Where other steps learnt more classes, their objects may lie in its background, which is then unlabelled.
    """
    split = curriculum.source.train
    mask = split.mask(index).long()
    labels = np.zeros(mask.shape, np.int64)
    for step in steps:
        seen = curriculum.training_table(step)[mask].numpy()
        labels = np.where(seen == BACKGROUND, labels, seen)
    is_complete = {channel for step in steps for channel in step.new} >= set(channels)
    ids = np.full(IGNORE + 1, IGNORE, np.uint8)
    ids[BACKGROUND] = BACKGROUND if is_complete else IGNORE
    ids[channels] = range(1, len(channels) + 1)
    image, target = split.files(index)[:1], out / "images" / split.ids[index]
    place = out / "masks" / f"{split.ids[index]}.png"
    with naming(out):
        for path in (target, place):
            path.parent.mkdir(parents=True, exist_ok=True)
        index_image(ids[labels]).save(place)
        if image:
            shutil.copyfile(image[0], target.with_name(target.name + image[0].suffix))
        else:
            Image.fromarray(split.image(index).permute(1, 2, 0).numpy()).save(target.with_name(f"{target.name}.png"))


def _write_lists(out: Path, classes: list[str], names: list[str]) -> None:
    """All of it is to learn from: nothing is held out."""
    with naming(out):
        (out / "classes.txt").write_text("".join(f"{name}\n" for name in classes), encoding="utf-8")
        (out / "train.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
