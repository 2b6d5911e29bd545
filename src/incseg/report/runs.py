"""Runs as the report sees them: the files they left behind."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from incseg.errors import InputError
from incseg.metrics import mean, nan_if_none


@dataclass(frozen=True)
class Run:
    """A run's folder and its ``result.json``."""

    folder: Path
    result: dict[str, Any]
    label: str = ""
    """How it is called beside others: its method, and in what its settings differ from runs of the same method."""

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

    def miou(self, step: int, name: str = "all") -> float:
        """A mean IoU of a step, NaN where there is none."""
        return nan_if_none(self.steps[step]["miou"][name])

    def iou(self, step: int, class_name: str) -> float:
        """IoU of a class after a step, NaN where it is not known yet or absent."""
        return nan_if_none(self.steps[step]["iou"].get(class_name))

    def group(self, first_channel: int, last_channel: int) -> float:
        """Mean final IoU of a range of channels, both included."""
        return mean(self.iou(-1, name) for name in self.classes[first_channel : last_channel + 1])


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read runs that are to be compared.

    They must be of one protocol, equally far. Runs of one method are told apart by the settings in which they differ;
    those that differ in nothing but the seed share a label, and the same run twice is refused.
    """
    runs = [Run.read(folder) for folder in folders]
    for run in runs[1:]:
        if (run.protocol, run.classes) != (runs[0].protocol, runs[0].classes):
            raise InputError(
                f"{runs[0].folder} ({runs[0].protocol}, {len(runs[0].steps)} steps) and {run.folder} ({run.protocol}, "
                f"{len(run.steps)} steps) cannot share a report: give runs of one protocol, equally far."
            )
    return _labelled(runs)


def names_beside_each_other(runs: Sequence[Run]) -> list[str]:
    """One name per run; several seeds are numbered."""
    labels = [run.label for run in runs]
    return [f"{run.label} #{run.seed}" if labels.count(run.label) > 1 else run.label for run in runs]


def _labelled(runs: Sequence[Run]) -> list[Run]:
    labelled: list[Run] = []
    for run in runs:
        siblings = [other for other in runs if other.method == run.method]
        names = sorted({name for other in siblings for name in other.settings})
        differing = [n for n in names if len({str(other.settings.get(n)) for other in siblings}) > 1]
        words = [f"{name.removeprefix('settings.')} {run.settings.get(name, 'default')}" for name in differing]
        named = replace(run, label=f"{run.method} ({', '.join(words)})" if words else run.method)
        for other in labelled:
            if (other.label, other.seed) == (named.label, named.seed):
                raise InputError(f"{other.folder} and {run.folder} are the same run with the same seed: give one.")
        labelled.append(named)
    return labelled
