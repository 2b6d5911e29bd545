"""What is kept on disk so that the same command, run again, goes on where it stopped.

A run's folder holds ``checkpoint.pt`` while a step is being learnt, and ``step-K/`` for every step that is done: the
model, what the method remembers, and last of all ``scores.json``, whose presence says that the step is complete.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from incseg.files import replacing


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
        save_file(
            {k: v.detach().cpu().contiguous() for k, v in memory.items()}, self.step(index) / "memory.safetensors"
        )
        write_json(self._scores(index), scores)
        self._checkpoint.unlink(missing_ok=True)

    def completed(self, index: int) -> bool:
        """Whether a step is done."""
        return self._scores(index).exists()

    def completed_step(self, index: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What the method remembered and the scores of a step that is done, or None."""
        if not self.completed(index):
            return None
        return load_file(self.step(index) / "memory.safetensors"), json.loads(self._scores(index).read_text())

    def _scores(self, index: int) -> Path:
        return self.step(index) / "scores.json"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"


def write_json(path: Path, value: object) -> None:
    """Write a whole file or none. Not-a-number, which JSON lacks, must have been replaced by None before."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")
