"""Where numbers and pictures of a run go besides ``metrics.jsonl``: TensorBoard, Weights & Biases, MLflow.

Each is a :class:`Logger`; ``--engine.loggers`` chooses. They watch and have no influence on the result.
"""

import importlib
import importlib.util
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from incseg.errors import InputError
from incseg.files import replacing

Pictures = Sequence[tuple[str, NDArray[np.uint8]]]  # names and (H, W, 3)


class Logger(Protocol):
    """Takes what a run has to show."""

    def log(self, group: str, at: int, values: Mapping[str, float]) -> None:
        """Values of a group: losses of ``step K`` at an iteration, or ``miou`` at a step."""

    def show(self, step: int, pictures: Pictures) -> None:
        """Images with their ground truth and prediction after a step, side by side."""

    def close(self) -> None:
        """Write what is still waiting."""


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, folder: Path, header: Mapping[str, Any]):  # noqa: ARG002
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, group: str, at: int, values: Mapping[str, float]) -> None:
        """One scalar per value."""
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, at)

    def show(self, step: int, pictures: Pictures) -> None:
        """Each image with a slider over the steps."""
        for name, picture in pictures:
            self._writer.add_image(f"predictions/{name}", picture, step, dataformats="HWC")

    def close(self) -> None:
        """Flush the events."""
        self._writer.close()


class WeightsAndBiases:
    """A run of W&B; ``WANDB_MODE``, ``WANDB_PROJECT`` and the others of its variables hold."""

    def __init__(self, folder: Path, header: Mapping[str, Any]):
        self._wandb = importlib.import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "incseg"),
                id=_identity(folder, "wandb", lambda: secrets.token_hex(4)),
                resume="allow",
                dir=folder,
                name=_title(header),
                group=header["protocol"],
                config=dict(header),
                settings=self._wandb.Settings(console="off", silent=True),
            )
        except self._wandb.Error as error:
            raise InputError(
                f"W&B cannot start ({_one_line(error)}): run 'wandb login', set WANDB_MODE=offline, or leave wandb out "
                "of --engine.loggers."
            ) from None
        self._groups: set[str] = set()

    def log(self, group: str, at: int, values: Mapping[str, float]) -> None:
        """Values over their group's own axis: W&B's step would run through all groups."""
        if group not in self._groups:
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/at")
            self._groups.add(group)
        self._run.log({f"{group}/at": at} | {f"{group}/{name}": value for name, value in values.items()})

    def show(self, step: int, pictures: Pictures) -> None:
        """One panel per image, one picture in it per step."""
        picture_of = self._wandb.Image
        self._run.log({f"predictions/{n}": picture_of(p, caption=f"{n} after step {step}") for n, p in pictures})

    def close(self) -> None:
        """End the run; the next process may take it up again."""
        self._run.finish()


class MLflow:
    """A run of MLflow, in the store that ``MLFLOW_TRACKING_URI`` names, or a database in the run's folder."""

    def __init__(self, folder: Path, header: Mapping[str, Any]):
        self._mlflow = importlib.import_module("mlflow")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # or it tells of every table it makes
        own = (folder / "mlflow").resolve()
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            own.mkdir(parents=True, exist_ok=True)
        try:
            self._client = self._mlflow.MlflowClient(tracking_uri=address or f"sqlite:///{own / 'mlflow.db'}")
            place = None if address else (own / "artifacts").as_uri()
            self._run = self._take_up(folder) or self._begin(folder, header, place)
        except self._mlflow.MlflowException as error:
            raise InputError(
                f"MLflow cannot start ({_one_line(error)}): check MLFLOW_TRACKING_URI, or leave mlflow out of "
                "--engine.loggers."
            ) from None

    def _take_up(self, folder: Path) -> str | None:
        """The run that an earlier process began, unless this is another store."""
        known = _identities(folder).get("mlflow")
        try:
            if known is not None:
                self._client.update_run(known, status="RUNNING")
        except self._mlflow.MlflowException:
            return None
        return known

    def _begin(self, folder: Path, header: Mapping[str, Any], place: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "incseg")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name, place)
        run: str = self._client.create_run(number, run_name=_title(header)).info.run_id
        facts = {
            **{k: header[k] for k in ("protocol", "method", "seed")},
            **header["settings"],
            **header["environment"],
        }
        params = [self._mlflow.entities.Param(key, str(value)) for key, value in facts.items()]
        for start in range(0, len(params), 100):  # as many as a request may hold
            self._client.log_batch(run, params=params[start : start + 100])
        _remember(folder, "mlflow", run)
        return run

    def log(self, group: str, at: int, values: Mapping[str, float]) -> None:
        """All values of a moment in one request."""
        now = int(1000 * time.time())
        metric = self._mlflow.entities.Metric
        self._client.log_batch(self._run, [metric(f"{group}/{name}", value, now, at) for name, value in values.items()])

    def show(self, step: int, pictures: Pictures) -> None:
        """One artifact per image and step."""
        for name, picture in pictures:
            self._client.log_image(self._run, picture, artifact_file=f"predictions/{name}/step-{step}.png")

    def close(self) -> None:
        """End the run; the next process may take it up again."""
        self._client.set_terminated(self._run)


KINDS: Mapping[str, Callable[[Path, Mapping[str, Any]], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
NEEDS = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


def require_packages(names: Sequence[str]) -> None:
    """Refuse loggers whose packages are not installed, before anything has begun."""
    for name in names:
        missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
        if missing:
            raise InputError(
                f"the logger '{name}' needs {' and '.join(missing)}, which is not installed: run "
                f"pip install 'incseg[{name}]', or leave it out of --engine.loggers."
            )


def open_loggers(names: Sequence[str], folder: Path, header: Mapping[str, Any]) -> dict[str, Logger]:
    """Open the loggers of a run by name; a run that was interrupted is taken up, not begun anew."""
    return {name: KINDS[name](folder, header) for name in names}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _title(header: Mapping[str, Any]) -> str:
    return f"{header['protocol']} {header['method']} seed {header['seed']}"


def _identities(folder: Path) -> dict[str, str]:
    """By which name the services know this run."""
    path = folder / "loggers.json"
    known: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return known


def _remember(folder: Path, name: str, identity: str) -> None:
    with replacing(folder / "loggers.json") as temporary:
        temporary.write_text(json.dumps(_identities(folder) | {name: identity}), encoding="utf-8")


def _identity(folder: Path, name: str, make: Callable[[], str]) -> str:
    known = _identities(folder).get(name)
    if known is None:
        known = make()
        _remember(folder, name, known)
    return known
