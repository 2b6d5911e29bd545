"""What a run achieved: its ``result.json``, read and asked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incseg.colours import DISTINCT, Colours
from incseg.errors import DamagedError, InputError
from incseg.metrics import CONVENTIONS, complete_mean, mean, nan_if_none
from incseg.protocol import BACKGROUND, Protocol
from incseg.result_shape import misfit
from incseg.run_folder import RunFolder, read_json

RECORD = ".record.json"  # how the name of a file ends that holds the result of a run without its folder
NEAR_ZERO = 0.02  # of an IoU or a recall: not worth to be called learnt


@dataclass(frozen=True, repr=False)
class Run:
    """A run's folder and its ``result.json``."""

    folder: Path
    result: dict[str, Any]
    label: str = ""
    """Its name in a comparison: the method, and the settings in which it differs from other runs of that method."""
    compared_base: int | None = None
    """How many classes step 0 has in the runs it is compared with, if that is not its own number."""
    begins_at: int = 0
    """The step of the other runs with which its first step is compared; a run on all classes at once compares with
    their last."""

    def __repr__(self) -> str:
        done = f"{len(self.steps)} step{'s' if len(self.steps) != 1 else ''}"
        return f"Run({self.folder}: {self.method} on {self.protocol}, seed {self.seed}, {done})"

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read the result of a run, finished or not, from its folder or a record of it; says why if it cannot."""
        path = folder if folder.is_file() else RunFolder(folder).result
        if not path.is_file():
            raise InputError(f"{folder} holds no {path.name}: give the folder of a run with at least one step done.")
        try:
            result = read_json(path)
        except DamagedError as error:
            raise InputError(f"{path} is not a result of incseg ({error}).") from None
        if wrong := misfit(result):
            raise InputError(f"{path} is not a result of incseg ({wrong}).")
        Protocol.parse(result["protocol"])
        return cls(folder, result, label=result["method"])

    @property
    def files(self) -> RunFolder:
        """Where its files lie."""
        return RunFolder(self.folder)

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
    def left_out(self) -> str:
        """In words, how many files could not be read and were skipped; empty if there were none."""
        found = self.result.get("unreadable") or ()
        return f"{len(found)} file(s) could not be read and were left out, see result.json" if found else ""

    @property
    def title(self) -> str:
        """What it is about: the model that was extended and what it learnt, or the protocol."""
        extended = self.result.get("extends")
        added = self.steps[-1]["new_classes"] if len(self.steps) > 1 else []
        return f"{extended} + {', '.join(added)}" if extended and added else extended or self.protocol

    @property
    def classes(self) -> list[str]:
        """Names by channel, background first."""
        return list(self.result["classes"])

    @property
    def colours(self) -> Colours:
        """The palette in which its classes are drawn."""
        colours: Colours = self.result.get("colours", DISTINCT)
        return colours

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The completed steps."""
        return list(self.result["steps"])

    @property
    def is_record(self) -> bool:
        """Whether it was read from a record, so that there is no folder."""
        return self.folder.name.endswith(RECORD)

    @property
    def is_complete(self) -> bool:
        """Whether every step is trained and scored; of runs that are not, no record is made."""
        if self.is_record:
            return True
        return self.files.data.exists() and len(self.steps) == len(read_json(self.files.data)["steps"])

    def cost(self, step: int) -> dict[str, float]:
        """The seconds of a step, the bytes of its model and of what the method remembers; empty if not measured."""
        entry = self.entry(step) or {}
        written: dict[str, float] | None = entry.get("cost")
        path = self.files.cost(int(entry.get("step", 0)))
        return written if written is not None else read_json(path) if path.is_file() else {}

    @property
    def domains(self) -> list[dict[str, Any]]:
        """Where steps bring domains: for each step so far, the names of its domains and the final score on them."""
        return list(self.steps[-1].get("domains") or ())

    @property
    def is_offline(self) -> bool:
        """Whether it learns all classes at once."""
        return Protocol.parse(self.protocol).task == "offline"

    @property
    def is_extension(self) -> bool:
        """Whether it extends a given model: then what is measured depends on what the validation images label."""
        return bool(self.result.get("extends"))

    def miou(self, step: int, name: str = "all") -> float:
        """A mean IoU of a step, NaN where there is none."""
        entry = self.entry(step)
        return nan_if_none(entry["miou"].get(name)) if entry else math.nan

    def iou(self, step: int, class_name: str) -> float:
        """IoU of a class after a step, NaN where it is not known yet or absent."""
        entry = self.entry(step)
        return nan_if_none(entry["iou"].get(class_name)) if entry else math.nan

    def background_recall(self, step: int) -> float:
        """The share of true background that a step's model calls so; NaN where no image labels every class."""
        entry = self.entry(step)
        counts = entry.get("confusion") if entry else None
        row = counts[BACKGROUND] if counts else []
        return row[BACKGROUND] / sum(row) if sum(row) else math.nan

    @property
    def agreement(self) -> dict[str, Any] | None:
        """Of an extension, how far its model agrees with the one before on the new images."""
        found: dict[str, Any] | None = self.result.get("agreement")
        return found

    @property
    def warning(self) -> str:
        """One sentence on what the last step left near zero: background, or a class it was to learn; else empty."""
        last = self.steps[-1]
        lost = [name for name in last["new_classes"] if self.iou(-1, name) < NEAR_ZERO]
        if self.background_recall(-1) < NEAR_ZERO:
            lost = [self.classes[BACKGROUND], *lost]
        if not lost:
            return ""
        return f"Hardly recognised after step {last['step']}: {', '.join(lost)} (below {NEAR_ZERO:.0%})."

    def pictures(self, step: int) -> Path:
        """Where the predictions after a step lie, if there are any."""
        return self.files.predictions(step - self.begins_at)

    def entry(self, step: int) -> dict[str, Any] | None:
        """All that is known of a step, None where this run has no such step."""
        index = step if step < 0 else step - self.begins_at
        return self.steps[index] if step < 0 or index >= 0 else None

    @property
    def base(self) -> int:
        """The number of foreground classes that count as those of step 0."""
        return len(self.steps[0]["new_classes"]) if self.compared_base is None else self.compared_base

    def counted(self, convention: str) -> dict[str, float]:
        """The final scores by one of ``metrics.CONVENTIONS``."""
        return CONVENTIONS[convention].scores([self.iou(-1, name) for name in self.classes], self.base)

    def average_over_steps(self, score: str) -> float:
        """The mean of a mean IoU over the steps."""
        return complete_mean(nan_if_none(step["miou"].get(score)) for step in self.steps)

    @property
    def scored_as(self) -> str:
        """The convention of its scores in words; runs from before they were written have only the setting."""
        return str(self.result.get("scored_as") or self.settings.get("data.scoring", "as in its settings"))

    @property
    def scored(self) -> str:
        """What was scored in the end and on how many images, in one line."""
        images = self.steps[-1].get("scored_images")
        return f"scored: {self.scored_as}, {'an unknown number of' if images is None else images} images"

    def group(self, first_channel: int, last_channel: int, with_background: bool = False) -> float:
        """Mean final IoU of a range of channels, both included, and of background if wished."""
        return self.mean_iou(-1, self.classes[:1] * with_background + self.classes[first_channel : last_channel + 1])

    def mean_iou(self, step: int, names: Sequence[str]) -> float:
        """Mean IoU of some classes after a step; an extension has none where one of them was not measured."""
        found = [self.iou(step, name) for name in names]
        return complete_mean(found) if self.is_extension else mean(found)


def scored_lines(runs: Sequence[Run]) -> list[str]:
    """What was scored in these runs: one line if it is the same for all, else one per convention with its runs."""
    methods: dict[str, list[str]] = {}
    for run in runs:
        names = methods.setdefault(run.scored, [])
        names += [run.label] if run.label not in names else []
    lines = list(methods) if len(methods) < 2 else [f"{', '.join(names)}: {line}" for line, names in methods.items()]
    return lines + [f"{run.label}, seed {run.seed}: {run.left_out}" for run in runs if run.left_out]
