"""What training keeps on disk so that an interrupted run resumes: the step in training, and every finished step."""

import errno
import pickle
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from incseg.checksums import FORMAT
from incseg.engine.cost import write_cost
from incseg.errors import DamagedError
from incseg.files import replacing, sync, sync_folder
from incseg.models.tensor_file import read_tensors, write_tensors
from incseg.result_shape import step_misfit
from incseg.run_folder import RunFolder, read_json, write_json

Memory = dict[str, Tensor]  # what the method remembers, by name
SOONEST = 60.0  # seconds between checkpoints, unless a person chose the iterations: writing one may take a second


class Pace:
    """How often a step is saved: at the end of an epoch, but not again before a minute is over; or as chosen."""

    def __init__(self, per_epoch: int, chosen: int | None):
        self.every, self.seconds = chosen or per_epoch, SOONEST if chosen is None else 0.0
        self.saved()

    def saved(self) -> None:
        """Begin to wait anew."""
        self._last = time.monotonic()

    @property
    def has_waited(self) -> bool:
        """Whether the last checkpoint is old enough by the clock of this process."""
        return time.monotonic() - self._last >= self.seconds


@dataclass(frozen=True)
class Checkpoint:
    """All that the next iteration of a step depends on. Randomness has no state to be saved (see seeding)."""

    step: int
    iteration: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    memory: Memory
    left_out: list[str] = field(default_factory=list)
    """Images of the step that could not be read, if these are skipped."""
    scale: dict[str, Any] = field(default_factory=dict)
    """The loss scale of float16."""
    seconds: float = 0.0
    """The time that the step has taken so far."""

    def save(self, folder: RunFolder) -> None:
        """Add a checkpoint and keep the one before; a reader never sees half of one, nor one ahead of the log."""
        if folder.metrics.exists():
            sync(folder.metrics)
        with replacing(folder.checkpoint) as temporary:
            with temporary.open("wb") as file:  # a path would hide from us why writing failed
                torch.save({**vars(self), "format": FORMAT}, file)
            if folder.checkpoint.exists():
                folder.checkpoint.replace(folder.checkpoint_before)

    @classmethod
    def load(cls, folder: RunFolder, step: int) -> "Checkpoint | None":
        """The last checkpoint of that step on the CPU, if there is one."""
        for path in (folder.checkpoint, folder.checkpoint_before):
            if path.exists() and (found := cls.read(path)).step == step:
                return found
        return None

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """A checkpoint from a file; refuses one that is damaged. PyTorch writes archives, each part with its CRC-32."""
        try:
            with zipfile.ZipFile(path) as archive:
                if wrong := archive.testzip():
                    raise DamagedError(f"{path} is damaged: {wrong} in it does not match its checksum.")
            values = torch.load(path, map_location="cpu", weights_only=True)
            if values.pop("format", FORMAT) > FORMAT:
                raise DamagedError(f"{path} was written by a newer version of incseg: update incseg.")
            return cls(**values)
        except DamagedError:
            raise
        except Exception as error:  # what is read may be anything, so that readers may fail in any way
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: an absurd position
                raise
            if isinstance(error, pickle.UnpicklingError):  # PyTorch would advise to run what the file contains
                raise DamagedError(f"{path} is damaged: it holds more than the numbers of a checkpoint.") from None
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DamagedError(f"{path} is damaged: it is no checkpoint of incseg ({reason}).") from None


@dataclass(frozen=True)
class FinishedStep:
    """What is kept of a finished step beside its model."""

    memory: Memory
    scores: dict[str, Any]
    spent: Mapping[str, float] | None = None
    """The time it took, and that of scoring in it; in a file of its own, as it is another whenever the same step is
    trained."""

    def save(self, folder: RunFolder, index: int) -> None:
        """Mark the step, whose model has been saved, as finished; only then delete its checkpoints."""
        write_tensors(folder.memory(index), self.memory)
        if self.spent is not None:
            write_cost(folder, index, self.spent)
        sync(folder.step(index))
        write_json(folder.scores(index), self.scores)
        folder.checkpoint.unlink(missing_ok=True)
        folder.checkpoint_before.unlink(missing_ok=True)
        sync_folder(folder.path)

    @classmethod
    def load_scored(cls, folder: RunFolder, index: int) -> "FinishedStep | None":
        """A finished step, or None; refuses scores that are none of incseg's."""
        finished = cls.load(folder, index)
        if finished is not None and (wrong := step_misfit(finished.scores)):
            raise DamagedError(f"{folder.scores(index)} is damaged: it does not hold the scores of a step ({wrong}).")
        return finished

    @classmethod
    def load(cls, folder: RunFolder, index: int) -> "FinishedStep | None":
        """A finished step, or None."""
        if not folder.is_finished(index):
            return None
        return cls(read_tensors(folder.memory(index))[1], read_json(folder.scores(index)))
