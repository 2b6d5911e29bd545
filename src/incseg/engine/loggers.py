"""Where numbers and pictures of a run go besides ``metrics.jsonl``: TensorBoard, Weights & Biases, MLflow.

Lightning's loggers write; here is what a run adds to them: names, pictures, and resuming the same run of a service.
``--engine.loggers`` chooses. Loggers have no influence on the result. Why so: docs/decisions/0006-loggers.md.
"""

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from numpy.typing import NDArray

from incseg.errors import InputError
from incseg.run_folder import RunFolder, read_json, write_json

Pictures = Sequence[tuple[str, NDArray[np.uint8]]]  # names and (H, W, 3)
Header = Mapping[str, Any]  # the head of result.json


class RunLogger(Protocol):
    """Receives what a run has to show."""

    def log(self, group: str, at: int, values: Mapping[str, float]) -> None:
        """Values of a group: losses of ``step K`` at an iteration, or ``miou`` at a step."""

    def show(self, step: int, pictures: Pictures) -> None:
        """Image, ground truth and prediction side by side, after a step."""

    def close(self) -> None:
        """Write what is still waiting."""


class LightningLogger:
    """One of Lightning's loggers; its subclasses know how their service takes pictures."""

    def __init__(self, logger: Logger):
        self._logger = logger
        self._service: Any = logger.experiment  # type: ignore[attr-defined] # opens it, so that it can fail now

    def log(self, group: str, at: int, values: Mapping[str, float]) -> None:
        """Every group has its own axis: iterations of a step, or steps."""
        self._logger.log_metrics({f"{group}/{name}": value for name, value in values.items()}, at)

    def close(self) -> None:
        """End the run; a resumed one continues it."""
        self._logger.finalize("success")


class TensorBoard(LightningLogger):
    """Event files in the run's folder."""

    def __init__(self, folder: RunFolder, header: Header):  # noqa: ARG002
        super().__init__(TensorBoardLogger(folder.path, name=folder.tensorboard.name, version=""))

    def show(self, step: int, pictures: Pictures) -> None:
        """Each image with a slider over the steps."""
        for name, picture in pictures:
            self._service.add_image(f"predictions/{name}", picture, step, dataformats="HWC")


class WeightsAndBiases(LightningLogger):
    """A run of W&B; its environment variables (``WANDB_MODE``, ``WANDB_PROJECT``, …) apply."""

    def __init__(self, folder: RunFolder, header: Header):
        wandb = importlib.import_module("wandb")
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            super().__init__(
                WandbLogger(
                    project=os.environ.get("WANDB_PROJECT", "incseg"),
                    id=_identities(folder).get("wandb"),
                    save_dir=folder.path,
                    name=_title(header),
                    group=header["protocol"],
                    config=dict(header),
                    settings=wandb.Settings(console="off", silent=True),
                )
            )
        except wandb.Error as error:
            raise InputError(
                f"W&B cannot start ({_one_line(error)}): run 'wandb login', set WANDB_MODE=offline, or leave wandb out "
                "of --engine.loggers."
            ) from None
        _remember(folder, "wandb", self._service.id)

    def show(self, step: int, pictures: Pictures) -> None:
        """One panel per image, one picture in it per step."""
        image = importlib.import_module("wandb").Image
        shown = {f"predictions/{name}": image(p, caption=f"{name} after step {step}") for name, p in pictures}
        self._logger.log_metrics(shown, step)

    def close(self) -> None:
        """End the run, which Lightning leaves open for others."""
        super().close()
        self._service.finish()


class MLflow(LightningLogger):
    """A run of MLflow, in the store that ``MLFLOW_TRACKING_URI`` names, or a database in the run's folder."""

    def __init__(self, folder: RunFolder, header: Header):
        mlflow = importlib.import_module("mlflow")
        for name in ("mlflow", "lightning.pytorch.loggers.mlflow"):  # or they report every table they create
            logging.getLogger(name).setLevel(logging.ERROR)
        own, address = folder.mlflow.resolve(), os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            own.mkdir(parents=True, exist_ok=True)
        uri = address or f"sqlite:///{own / 'mlflow.db'}"
        try:
            known = self._reopened(mlflow, uri, _identities(folder).get("mlflow"))
            logger = MLFlowLogger(
                os.environ.get("MLFLOW_EXPERIMENT_NAME", "incseg"),
                run_name=_title(header),
                tracking_uri=uri,
                artifact_location=None if address else (own / "artifacts").as_uri(),
                run_id=known,
            )
            super().__init__(logger)
            if known is None:
                named = {name: header[name] for name in ("protocol", "method", "seed")}
                logger.log_hyperparams({**named, **header["settings"], **header["environment"]})
        except mlflow.MlflowException as error:
            raise InputError(
                f"MLflow cannot start ({_one_line(error)}): check MLFLOW_TRACKING_URI, or leave mlflow out of "
                "--engine.loggers."
            ) from None
        self._run = str(logger.run_id)
        _remember(folder, "mlflow", self._run)

    @staticmethod
    def _reopened(mlflow: Any, uri: str, known: str | None) -> str | None:
        """The run that an earlier process began, running again; None if this store does not have it."""
        try:
            if known is not None:
                mlflow.MlflowClient(uri).update_run(known, status="RUNNING")
        except mlflow.MlflowException:
            return None
        return known

    def show(self, step: int, pictures: Pictures) -> None:
        """One artifact per image and step."""
        for name, picture in pictures:
            self._service.log_image(self._run, picture, artifact_file=f"predictions/{name}/step-{step}.png")


KINDS: Mapping[str, Callable[[RunFolder, Header], RunLogger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def open_loggers(names: Sequence[str], folder: RunFolder, header: Header) -> dict[str, RunLogger]:
    """Open the loggers of a run by name; a resumed run continues its earlier one in each service."""
    return {name: KINDS[name](folder, header) for name in names}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _title(header: Header) -> str:
    return f"{header['protocol']} {header['method']} seed {header['seed']}"


def _identities(folder: RunFolder) -> dict[str, str]:
    """The ids of this run in the services."""
    path = folder.loggers
    known: dict[str, str] = read_json(path) if path.is_file() else {}
    return known


def _remember(folder: RunFolder, name: str, identity: str) -> None:
    write_json(folder.loggers, _identities(folder) | {name: identity})
