"""Runs as the report sees them: the files they left behind."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from incseg.errors import InputError
from incseg.metrics import mean, nan_if_none
from incseg.protocol import Protocol


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
        return nan_if_none(entry["miou"][name]) if entry else math.nan

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


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read runs that are to be compared.

    They must be of one protocol, equally far; runs of the task ``offline`` on the same classes may stand beside them,
    and come last. Runs of one method are told apart by the settings in which they differ; those that differ in nothing
    but the seed share a label, and the same run twice is refused.
    """
    runs = sorted((Run.read(folder) for folder in folders), key=lambda run: run.is_offline)
    first = runs[0]
    for run in runs[1:]:
        if not _comparable(first, run):
            raise InputError(
                f"{first.folder} ({first.protocol}, {len(first.steps)} steps) and {run.folder} ({run.protocol}, "
                f"{len(run.steps)} steps) cannot share a report: give runs of one protocol, equally far, and beside "
                "them at most runs of the task 'offline' on the same classes."
            )
    return _labelled([replace(run, begins_at=len(first.steps) - len(run.steps)) for run in runs])


def _comparable(first: Run, run: Run) -> bool:
    """All classes at once is the same in both settings: no class is later."""
    datasets = [Protocol.parse(one.protocol).dataset for one in (first, run)]
    alike = run.protocol == first.protocol or (run.is_offline and datasets[0] == datasets[1])
    return alike and run.classes == first.classes


def names_beside_each_other(runs: Sequence[Run]) -> list[str]:
    """One name per run; several seeds are numbered."""
    labels = [run.label for run in runs]
    return [f"{run.label} #{run.seed}" if labels.count(run.label) > 1 else run.label for run in runs]


def _labelled(runs: Sequence[Run]) -> list[Run]:
    labelled: list[Run] = []
    for run in runs:
        siblings = [other for other in runs if (other.method, other.protocol) == (run.method, run.protocol)]
        names = sorted({name for other in siblings for name in other.settings})
        differing = [n for n in names if len({str(other.settings.get(n)) for other in siblings}) > 1]
        words = [f"{name.removeprefix('settings.')} {run.settings.get(name, 'default')}" for name in differing]
        words = ["offline", *words] if run.protocol != runs[0].protocol else words
        named = replace(run, label=f"{run.method} ({', '.join(words)})" if words else run.method)
        for other in labelled:
            if (other.label, other.seed) == (named.label, named.seed):
                raise InputError(f"{other.folder} and {run.folder} are the same run with the same seed: give one.")
        labelled.append(named)
    return labelled
