"""What an extension changed of the old classes, estimated without old data: both models on the new images."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from incseg.colours import Colours
from incseg.config import RunConfig
from incseg.console import Console, progress_of
from incseg.curriculum import Curriculum, build_curriculum
from incseg.datasets import Split
from incseg.errors import InputError
from incseg.files import naming, remove
from incseg.images import index_image
from incseg.metrics import confusion_matrix, intersection_over_union, mean, none_if_nan
from incseg.models import Segmenter
from incseg.models.devices import choose_device
from incseg.models.storage import load_model
from incseg.models.tiles import predict_ids
from incseg.protocol import IGNORE, Protocol
from incseg.run_folder import RunFolder, read_json, write_json

LEAST_SHARE = 0.001  # of the pixels: a class that the old model sees less of is noise, and left out of the mean
PATIENCE = 5.0  # seconds before a log hears of the progress


def agreement(folder: RunFolder, config: RunConfig, colours: Colours, console: Console) -> dict[str, Any]:
    """How far the extended model agrees with the given one on the new images, as it stands in ``result.json``.

    Measured once; the models of a finished run do not change. Pictures of where they differ most are left beside it.
    """
    file = folder.agreement / "agreement.json"
    if not file.exists():
        device = choose_device("cpu" if config.engine.accelerator == "cpu" else "auto")
        models = [load_model(folder.model(step), device)[0] for step in (0, 1)]
        curriculum = build_curriculum(Protocol.parse(config.protocol), config.data.after_training)
        remove(folder.agreement)
        comparison = Comparison(models[0], models[1], curriculum)
        measured = comparison.measure(console)
        comparison.save_pictures(folder.agreement, config.engine.pictures, colours)
        write_json(file, measured)
    return read_json(file)


class Comparison:
    """Two models on the images of an extension: those held out, or where there are none those it learnt from."""

    def __init__(self, before: Segmenter, after: Segmenter, curriculum: Curriculum):
        source, self.step = curriculum.source, curriculum.steps[-1]
        self.before, self.after, self.curriculum = before.eval(), after.eval(), curriculum
        self.split: Split = source.val if len(source.val) else source.train
        self.are_held_out = len(source.val) > 0
        self.changed: dict[int, float] = {}
        """By image, the share of the compared pixels on which they differ."""

    def maps(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """(3, H, W) the image, and (H, W) the old and the new model's class of each pixel; 255 in the first map where
        the pixel is labelled with a new class, which the old model cannot know."""
        image, mask = self.split.image(index), self.split.mask(index).long()
        old, new = (predict_ids(model, image[None])[0].cpu().long() for model in (self.before, self.after))
        is_new = self.curriculum.training_table(self.step)[mask] >= self.step.old_classes
        is_new &= mask != IGNORE
        return image, old.masked_fill(is_new, IGNORE), new

    def measure(self, console: Console) -> dict[str, Any]:
        """IoU of the two maps for every old class, over the pixels that are not labelled with a new class."""
        total = torch.zeros(self.step.num_classes, self.step.num_classes, dtype=torch.int64)
        for index in self._readable(console):
            _, old, new = self.maps(index)
            counts = confusion_matrix(old, new, self.step.num_classes)
            self.changed[index] = 1 - float(counts.trace() / counts.sum().clamp(min=1))
            total += counts
        classes = self.curriculum.classes[: self.step.old_classes]
        values = intersection_over_union(total)[: len(classes)]
        shares = (total.sum(dim=1) / total.sum().clamp(min=1)).tolist()[: len(classes)]
        frequent = [value for value, share in zip(values[1:], shares[1:], strict=True) if share >= LEAST_SHARE]
        return {
            "mean": none_if_nan(mean(frequent)),
            "classes": {name: none_if_nan(value) for name, value in zip(classes, values, strict=True)},
            "shares": dict(zip(classes, shares, strict=True)),
            "images": len(self.changed),
            "held_out": self.are_held_out,
        }

    def save_pictures(self, folder: Path, number: int, colours: Colours) -> None:
        """The images on which they differ most, as ``RANK-NAME.{image.jpg,before.png,after.png}``."""
        most = sorted(self.changed, key=lambda index: (-self.changed[index], index))[:number]
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for rank, index in enumerate(index for index in most if self.changed[index] > 0):
                image, old, new = self.maps(index)
                name = re.sub(r"[/\\]", "_", self.split.ids[index])  # an image may lie in a subfolder
                stem = folder / f"{rank:02d}-{name}"
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(f"{stem}.image.jpg", quality=92)
                for which, ids in (("before", old), ("after", new)):
                    index_image(ids.numpy().astype(np.uint8), colours).save(f"{stem}.{which}.png")

    def _readable(self, console: Console) -> Iterator[int]:
        """The images that can be read: what to do about others was decided before the training."""
        with progress_of("comparing with the model before", console, patience=PATIENCE) as advance:
            for index in range(len(self.split)):
                with suppress(InputError):
                    self.split.check(index)
                    self.split.mask(index)
                    yield index
                advance(index + 1, len(self.split))
