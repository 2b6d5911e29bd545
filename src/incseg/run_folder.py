"""What is kept on disk so that the same command, run again, goes on where it stopped.

A run's folder holds ``checkpoint.pt`` while a step is being learnt, and ``step-K/`` for every step that is done: the
model, what the method remembers, and last of all ``scores.json``, whose presence says that the step is complete.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from incseg.errors import InputError
from incseg.files import replacing
from incseg.metrics import mean, nan_if_none
from incseg.protocol import Protocol


@dataclass(frozen=True)
class Progress:
    """A step half learnt: everything that the next iteration depends on. Randomness needs no state (see seeding)."""

    step: int
    iteration: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    memory: dict[str, Tensor]


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def result(self) -> Path:
        """The scores of all completed steps."""
        return self.path / "result.json"

    @property
    def metrics(self) -> Path:
        """One line per logged iteration."""
        return self.path / "metrics.jsonl"

    def step(self, index: int) -> Path:
        """Where a completed step lies."""
        return self.path / f"step-{index}"

    def model(self, index: int) -> Path:
        """The model after a step."""
        return self.step(index) / "model.safetensors"

    def memory(self, index: int) -> Path:
        """What the method remembered after a step."""
        return self.step(index) / "memory.safetensors"

    def scores(self, index: int) -> Path:
        """The scores of a step; written last, so that their presence says that the step is done."""
        return self.step(index) / "scores.json"

    def predictions(self, index: int) -> Path:
        """Pictures of what the model says after a step."""
        return self.step(index) / "predictions"

    @property
    def report(self) -> Path:
        """The page that shows this run."""
        return self.path / "report.html"

    @property
    def model_card(self) -> Path:
        """What a person should know of the model."""
        return self.path / "MODEL_CARD.md"

    @property
    def loggers(self) -> Path:
        """By which names outside services know this run."""
        return self.path / "loggers.json"

    @property
    def has_begun(self) -> bool:
        """Whether there are weights to go on with, so that pretrained ones need not be fetched again."""
        return self._checkpoint.exists() or self.completed_step(0) is not None

    def save_progress(self, progress: Progress) -> None:
        """Replace the checkpoint, whole or not at all."""
        with replacing(self._checkpoint) as temporary:
            torch.save(vars(progress), temporary)

    def load_progress(self, step: int) -> Progress | None:
        """The checkpoint of that step, if there is one."""
        if not self._checkpoint.exists():
            return None
        progress = Progress(**torch.load(self._checkpoint, map_location="cpu", weights_only=True))
        return progress if progress.step == step else None

    def complete_step(self, index: int, memory: dict[str, Tensor], scores: dict[str, Any]) -> None:
        """Record that a step is done; the model has been saved before."""
        save_file({k: v.detach().cpu().contiguous() for k, v in memory.items()}, self.memory(index))
        write_json(self.scores(index), scores)
        self._checkpoint.unlink(missing_ok=True)

    def completed(self, index: int) -> bool:
        """Whether a step is done."""
        return self.scores(index).exists()

    def completed_step(self, index: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What the method remembered and the scores of a step that is done, or None."""
        if not self.completed(index):
            return None
        return load_file(self.memory(index)), json.loads(self.scores(index).read_text())

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"


def write_json(path: Path, value: object) -> None:
    """Write a whole file or none. Not-a-number, which JSON lacks, must have been replaced by None before."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")


@dataclass(frozen=True)
class Run:
    """A run's folder and its ``result.json``."""

    folder: Path
    result: dict[str, Any]
    label: str = ""
    """How it is called beside others: its method, and in what its settings differ from runs of the same method."""
    begins_at: int = 0
    """The step of the others beside which its first step stands: all classes at once compare with the others' last."""

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read the result of a run, finished or not, or say why that cannot be done."""
        path = folder / "result.json"
        if not path.is_file():
            raise InputError(f"{folder} holds no result.json: give the folder of a run with at least one step done.")
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            return cls(folder, result, label=result["method"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a result of incseg ({type(error).__name__}: {error}).") from None

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.result["method"])

    @property
    def seed(self) -> int:
        """Which repetition it is."""
        return int(self.result["seed"])

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that belongs to the experiment but the seed, dotted."""
        return dict(self.result["settings"])

    @property
    def protocol(self) -> str:
        """The protocol's name."""
        return str(self.result["protocol"])

    @property
    def classes(self) -> list[str]:
        """Names by channel, background first."""
        return list(self.result["classes"])

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The completed steps."""
        return list(self.result["steps"])

    @property
    def is_offline(self) -> bool:
        """Whether it learns all classes at once."""
        return Protocol.parse(self.protocol).task == "offline"

    def miou(self, step: int, name: str = "all") -> float:
        """A mean IoU of a step, NaN where there is none."""
        entry = self.entry(step)
        return nan_if_none(entry["miou"].get(name)) if entry else math.nan

    def iou(self, step: int, class_name: str) -> float:
        """IoU of a class after a step, NaN where it is not known yet or absent."""
        entry = self.entry(step)
        return nan_if_none(entry["iou"].get(class_name)) if entry else math.nan

    def pictures(self, step: int) -> Path:
        """Where the predictions after a step lie, if there are any."""
        return self.folder / f"step-{step - self.begins_at}" / "predictions"

    def entry(self, step: int) -> dict[str, Any] | None:
        """All that is known of a step, None where this run has no such step."""
        index = step if step < 0 else step - self.begins_at
        return self.steps[index] if step < 0 or index >= 0 else None

    def group(self, first_channel: int, last_channel: int, with_background: bool = False) -> float:
        """Mean final IoU of a range of channels, both included, and of background if wished."""
        names = self.classes[:1] * with_background + self.classes[first_channel : last_channel + 1]
        return mean(self.iou(-1, name) for name in names)
