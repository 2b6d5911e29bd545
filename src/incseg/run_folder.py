"""The files of a run and their names, in one place.

``config.yaml``, ``data.json``, ``result.json``, ``metrics.jsonl``, ``report.html``; ``checkpoint.pt`` and the one
before while a step is in training; and ``step-K/`` for every finished step: the model, what the method remembers,
pictures, what it cost, and last of all ``scores.json``, whose presence says that the step is finished.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incseg.checksums import sealed, unsealed
from incseg.errors import DamagedError, InputError
from incseg.files import expanded, replacing
from incseg.hub import fetched, name_on_hub

MODEL_FILE = "model.safetensors"


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
    def agreement(self) -> Path:
        """Of an extension: how far its model agrees with the one before, and pictures of where it does not."""
        return self.path / "agreement"

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

    def cost(self, index: int) -> Path:
        """The time a step took, and the size of what it leaves to the next; see ``incseg.engine.cost``."""
        return self.step(index) / "cost.json"

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
    """The file that a person means by MODEL: a run's last finished step, a ``step-K`` folder, a file, or ``hf://…``."""
    path = fetched(expanded(path))
    if not path.exists():
        raise InputError(
            f"there is no model {path}: give the folder of a run, a step-K folder, a .safetensors file or hf://user/name."
        )
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


def run_with_steps(path: Path, option: str) -> RunFolder:
    """The run that an option names; refuses a folder without a finished step."""
    if not RunFolder(path).finished_steps:
        raise InputError(f"{option} {path} is not the folder of a run with finished steps.")
    return RunFolder(path)


def model_name(file: Path) -> str:
    """What a person calls the model in a file: the name of its run or of its folder, else of the file."""
    place = RunFolder.holding(file)
    folder = place[0].path if place else file.parent
    if on_hub := name_on_hub(folder):
        return on_hub
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
