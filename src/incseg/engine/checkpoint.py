"""What training keeps on disk so that an interrupted run resumes: the step in training, and every finished step."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from incseg.files import replacing
from incseg.run_folder import RunFolder, write_json

Memory = dict[str, Tensor]  # what the method remembers, by name


@dataclass(frozen=True)
class Checkpoint:
    """All that the next iteration of a step depends on. Randomness has no state to be saved (see seeding)."""

    step: int
    iteration: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    memory: Memory

    def save(self, folder: RunFolder) -> None:
        """Replace the checkpoint of a run; a reader never sees half of it."""
        with replacing(folder.checkpoint) as temporary:
            torch.save(vars(self), temporary)

    @classmethod
    def load(cls, folder: RunFolder, step: int) -> "Checkpoint | None":
        """The checkpoint of that step on the CPU, if there is one."""
        if not folder.checkpoint.exists():
            return None
        checkpoint = cls(**torch.load(folder.checkpoint, map_location="cpu", weights_only=True))
        return checkpoint if checkpoint.step == step else None


@dataclass(frozen=True)
class FinishedStep:
    """What is kept of a finished step beside its model."""

    memory: Memory
    scores: dict[str, Any]

    def save(self, folder: RunFolder, index: int) -> None:
        """Mark the step, whose model has been saved, as finished, and delete its checkpoint."""
        folder.step(index).mkdir(parents=True, exist_ok=True)
        save_file({k: v.detach().cpu().contiguous() for k, v in self.memory.items()}, folder.memory(index))
        write_json(folder.scores(index), self.scores)
        folder.checkpoint.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: RunFolder, index: int) -> "FinishedStep | None":
        """A finished step, or None."""
        if not folder.is_finished(index):
            return None
        return cls(load_file(folder.memory(index)), json.loads(folder.scores(index).read_text(encoding="utf-8")))
