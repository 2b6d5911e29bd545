"""What a step costs: the time it takes, and the size of what it leaves to the next."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from incseg.run_folder import RunFolder, read_json, write_json

TIMES = ("seconds", "scoring_seconds")


class StepClock:
    """The seconds of a step, over all processes that trained a part of it; what was lost in a crash does not count."""

    def __init__(self) -> None:
        self._began, self._before, self._scoring = time.monotonic(), 0.0, 0.0

    def continue_from(self, seconds: float = 0.0, scoring_seconds: float = 0.0) -> None:
        """Add what an earlier process has spent on what this one continues."""
        self._before += seconds
        self._scoring += scoring_seconds

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """What is done inside is scoring, not learning."""
        began = time.monotonic()
        yield
        self._scoring += time.monotonic() - began

    @property
    def seconds(self) -> float:
        """So far."""
        return self._before + time.monotonic() - self._began

    @property
    def spent(self) -> dict[str, float]:
        """So far, and the part of it that was scoring."""
        return {"seconds": self.seconds, "scoring_seconds": self._scoring}


def write_cost(folder: RunFolder, index: int, spent: Mapping[str, float]) -> None:
    """Write the cost of a step whose model and memory are there: what the next step is given of all before it."""
    sizes = {"model_bytes": folder.model(index), "memory_bytes": folder.memory(index)}
    times = {name: round(seconds, 3) for name, seconds in spent.items()}
    write_json(folder.cost(index), times | {name: path.stat().st_size for name, path in sizes.items()})


def spent_on(folder: RunFolder, index: int) -> dict[str, float]:
    """The time of a finished step, as its clock gave it; empty if it was not measured."""
    path = folder.cost(index)
    cost = read_json(path) if path.exists() else {}
    return {name: float(cost[name]) for name in TIMES if name in cost}
