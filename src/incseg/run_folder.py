"""The files of a run and their names, in one place.

``config.yaml``, ``data.json``, ``result.json``, ``metrics.jsonl``, ``report.html``; ``checkpoint.pt`` and the one
before while a step is in training; and ``step-K/`` for every finished step: the model, what the method remembers,
pictures, and last of all ``scores.json``, whose presence says that the step is finished.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from incseg.checksums import sealed, unsealed
from incseg.colours import DISTINCT, Colours
from incseg.errors import DamagedError, InputError
from incseg.files import expanded, replacing
from incseg.metrics import CONVENTIONS, mean, nan_if_none
from incseg.protocol import BACKGROUND, Protocol

MODEL_FILE = "model.safetensors"
NEAR_ZERO = 0.02  # of an IoU or a recall: not worth to be called learnt


class StepResult(BaseModel):
    """What every ``result.json`` says of a step; there may be more."""

    step: int
    new_classes: list[str]
    miou: dict[str, float | None]
    iou: dict[str, float | None]


class Result(BaseModel):
    """What every ``result.json`` says, from whatever version of incseg."""

    protocol: str
    method: str
    seed: int
    settings: dict[str, Any]
    classes: list[str] = Field(min_length=2)
    steps: list[StepResult] = Field(min_length=1)


@dataclass(frozen=True)
class RunFolder:
    """Where everything of one run lies."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def result(self) -> Path:
        """The scores of all finished steps."""
        return self.path / "result.json"

    @property
    def metrics(self) -> Path:
        """One line per logged iteration."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The state of the step in training, from which an interrupted run resumes."""
        return self.path / "checkpoint.pt"

    @property
    def checkpoint_before(self) -> Path:
        """The checkpoint before that, taken if the last one turns out to be damaged."""
        return self.path / "checkpoint-before.pt"

    @property
    def data(self) -> Path:
        """The fingerprint of the data that the run learns from."""
        return self.path / "data.json"

    @property
    def lock(self) -> Path:
        """Names the process that writes in this folder, as long as it runs."""
        return self.path / ".lock"

    @property
    def report(self) -> Path:
        """The page that shows this run."""
        return self.path / "report.html"

    @property
    def model_card(self) -> Path:
        """The description of the model for people who use it."""
        return self.path / "MODEL_CARD.md"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def mlflow(self) -> Path:
        """MLflow's database and artifacts, where no tracking server is given."""
        return self.path / "mlflow"

    @property
    def loggers(self) -> Path:
        """The identities of this run in W&B and MLflow, so that a resumed run continues there."""
        return self.path / "loggers.json"

    def step(self, index: int) -> Path:
        """The folder of a step."""
        return self.path / f"step-{index}"

    def model(self, index: int) -> Path:
        """The model after a step."""
        return self.step(index) / MODEL_FILE

    def memory(self, index: int) -> Path:
        """What the method remembers after a step."""
        return self.step(index) / "memory.safetensors"

    def scores(self, index: int) -> Path:
        """The scores of a step; written last, so that their presence says that the step is finished."""
        return self.step(index) / "scores.json"

    def predictions(self, index: int) -> Path:
        """Pictures of the model's predictions after a step."""
        return self.step(index) / "predictions"

    def is_finished(self, index: int) -> bool:
        """Whether a step is trained and scored."""
        return self.scores(index).exists()

    @property
    def finished_steps(self) -> list[int]:
        """The finished steps in order; empty for anything but the folder of a run."""
        if not self.path.is_dir():
            return []
        numbers = [re.fullmatch(r"step-(\d+)", folder.name) for folder in self.path.iterdir()]
        return sorted(int(found[1]) for found in numbers if found and self.is_finished(int(found[1])))

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to resume from, so that pretrained ones need not be fetched again."""
        return self.checkpoint.exists() or self.checkpoint_before.exists() or self.is_finished(0)

    @classmethod
    def holding(cls, model: Path) -> tuple["RunFolder", int] | None:
        """The run and the step to which a model file belongs; None for a file that lies elsewhere."""
        found = re.fullmatch(r"step-(\d+)", model.parent.name)
        run = cls(model.parent.parent)
        return (run, int(found[1])) if found and model.name == MODEL_FILE and run.config.is_file() else None


def model_file(path: Path, step: int | None = None) -> Path:
    """The file that a person means by MODEL: a run's last finished step, a ``step-K`` folder, or a file."""
    path = expanded(path)
    if not path.exists():
        raise InputError(f"there is no model {path}: give the folder of a run, a step-K folder or a .safetensors file.")
    run, steps = RunFolder(path), RunFolder(path).finished_steps
    if step is not None:
        if not steps:
            raise InputError(f"a step can be chosen only of a run's folder, and {path} is none: leave the step out.")
        if step not in steps:
            raise InputError(f"{path} has no finished step {step}: choose from {', '.join(map(str, steps))}.")
        return run.model(step)
    if path.is_file():
        return path
    if (inside := path / MODEL_FILE).is_file():
        return inside
    if not steps:
        raise InputError(
            f"{path} holds no model: give the folder of a run with a finished step (step-0/{MODEL_FILE} …), a "
            "step-K folder or a .safetensors file."
        )
    return run.model(steps[-1])


def model_name(file: Path) -> str:
    """What a person calls the model in a file: the name of its run or of its folder, else of the file."""
    place = RunFolder.holding(file)
    folder = place[0].path if place else file.parent
    return folder.resolve().name if file.name == MODEL_FILE else file.stem


def statistics_file(model: Path) -> Path:
    """Where the statistics of a model file lie, if it has any: beside it."""
    beside = "memory.safetensors" if model.name == MODEL_FILE else f"{model.stem}.statistics.safetensors"
    return model.with_name(beside)


def read_json(path: Path) -> dict[str, Any]:
    """What :func:`write_json` wrote; refuses a file that is damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no text, or no JSON
        raise DamagedError(f"{path} is damaged: it cannot be read as JSON ({error}).") from None
    return unsealed(values, path)


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The intact lines of ``metrics.jsonl`` and how many are damaged; a last one cut off by a crash is neither."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    entries, damaged = [], 0
    for line in lines[:-1]:
        try:
            entries.append(unsealed(json.loads(line), path))
        except (ValueError, DamagedError):
            damaged += 1
    return entries, damaged


def metrics_line(entry: Mapping[str, Any]) -> str:
    """A line of ``metrics.jsonl``."""
    return json.dumps(sealed(entry))


def write_metrics(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Replace ``metrics.jsonl``."""
    with replacing(path) as temporary:
        temporary.write_text("".join(f"{metrics_line(entry)}\n" for entry in entries), encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a whole file or none. JSON has no NaN: the caller replaces it by None."""
    text = json.dumps(sealed(value), indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")


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
        """Read the result of a run, finished or not, or say why that cannot be done."""
        path = RunFolder(folder).result
        if not path.is_file():
            raise InputError(f"{folder} holds no {path.name}: give the folder of a run with at least one step done.")
        try:
            result = read_json(path)
            return cls(folder, result, label=Result.model_validate(result).method)
        except DamagedError as error:
            raise InputError(f"{path} is not a result of incseg ({error}).") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{path} is not a result of incseg ({where}: {first['msg']}).") from None

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

    def background_recall(self, step: int) -> float:
        """The share of true background that a step's model calls so; NaN where no image labels every class."""
        entry = self.entry(step)
        row = entry["confusion"][BACKGROUND] if entry and "confusion" in entry else []
        return row[BACKGROUND] / sum(row) if sum(row) else math.nan

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
        return mean(nan_if_none(step["miou"].get(score)) for step in self.steps)

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
        names = self.classes[:1] * with_background + self.classes[first_channel : last_channel + 1]
        return mean(self.iou(-1, name) for name in names)


def scored_lines(runs: Iterable[Run]) -> list[str]:
    """What was scored in these runs: one line if it is the same for all, else one per convention with its runs."""
    methods: dict[str, list[str]] = {}
    for run in runs:
        names = methods.setdefault(run.scored, [])
        names += [run.label] if run.label not in names else []
    return list(methods) if len(methods) < 2 else [f"{', '.join(names)}: {line}" for line, names in methods.items()]
