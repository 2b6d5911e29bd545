"""Runs as the report sees them: the files they left behind."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incseg.errors import InputError
from incseg.metrics import mean


@dataclass(frozen=True)
class Run:
    """A run's folder and its ``result.json``."""

    folder: Path
    result: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read the result of a run, finished or not, or say why that cannot be done."""
        path = folder / "result.json"
        if not path.is_file():
            raise InputError(f"{folder} holds no result.json: give the folder of a run with at least one step done.")
        try:
            return cls(folder, json.loads(path.read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            raise InputError(f"{path} is not a result of incseg: {error}.") from None

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.result["method"])

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

    def miou(self, step: int, name: str = "all") -> float:
        """A mean IoU of a step, NaN where there is none."""
        return value_of(self.steps[step]["miou"][name])

    def iou(self, step: int, class_name: str) -> float:
        """IoU of a class after a step, NaN where it is not known yet or absent."""
        return value_of(self.steps[step]["iou"].get(class_name))

    def group(self, first_channel: int, last_channel: int) -> float:
        """Mean final IoU of a range of channels, both included."""
        return mean(self.iou(-1, name) for name in self.classes[first_channel : last_channel + 1])


def value_of(number: float | None) -> float:
    """JSON has no NaN; None stands for it."""
    return math.nan if number is None else float(number)
