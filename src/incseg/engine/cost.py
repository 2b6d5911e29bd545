"""What a step costs: the time it takes, and the size of what it leaves to the next."""

import time
from collections.abc import Mapping

from incseg.run_folder import RunFolder, read_json, write_json


class StepClock:
    """The seconds of a step, over all processes that trained a part of it; what was lost in a crash does not count."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), 0.0

    def continue_from(self, seconds: float) -> None:
        """Add what an earlier process has spent on what this one continues."""
        self._before += seconds

    @property
    def seconds(self) -> float:
        """So far."""
        return self._before + time.monotonic() - self._began


def write_cost(folder: RunFolder, index: int, spent: Mapping[str, float]) -> None:
    """Write the cost of a step whose model and memory are there: what the next step is given of all before it."""
    sizes = {"model_bytes": folder.model(index), "memory_bytes": folder.memory(index)}
    times = {name: round(seconds, 3) for name, seconds in spent.items()}
    write_json(folder.cost(index), times | {name: path.stat().st_size for name, path in sizes.items()})


def seconds_of(folder: RunFolder, index: int) -> float:
    """The time of a finished step; 0 if it was not measured."""
    path = folder.cost(index)
    return float(read_json(path)["seconds"]) if path.exists() else 0.0
