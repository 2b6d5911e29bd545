"""What refuses a run before anything is started, and before PyTorch, which takes seconds, is imported."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from incseg.config import RESCORING, SCORING, EngineConfig, RunConfig, differing_setting, from_yaml
from incseg.errors import InputError
from incseg.files import usable_folder
from incseg.run_folder import RunFolder

LOGGERS = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
IN_EXTENSIONS = {
    "model": "the network is the given model's",
    "data.root": "the folder is given with --data",
    "data.validation": "the folder is given with --validation",
    "data.replay": "the folder is given with --replay",
    "data.replayed_images": "the number is given with --memory",
    "data.known": "the classes known so far are the given model's",
    "data.class_order": "new classes are learnt in the order of classes.txt",
    "data.splits": "an extension is one step, and all training images of the folder belong to it",
    **dict.fromkeys(sorted(SCORING), "an extension is scored in one way only, each class where it is labelled"),
}
"""Settings that an extension does not take, and why."""


def check_run(config: RunConfig, out: Path) -> None:
    """Refuse what the settings and the folder of a run alone tell."""
    require_packages(config.engine.loggers)
    usable_folder(out)
    if config.data.complete and config.data.known is None:
        raise InputError("--data.complete is for 'incseg extend': the steps of a protocol say what their images label.")
    refuse_another_run(config, out)
    _check_launcher(config.engine)
    check_batch_size(config)


def require_packages(names: Sequence[str]) -> None:
    """Refuse loggers whose packages are not installed."""
    for name in names:
        missing = [package for package in LOGGERS[name] if importlib.util.find_spec(package) is None]
        if missing:
            raise InputError(
                f"the logger '{name}' needs {' and '.join(missing)}, which is not installed: run "
                f"pip install 'incseg[{name}]', or leave it out of --engine.loggers."
            )


def refuse_another_run(config: RunConfig, out: Path) -> None:
    """A folder keeps the run that began there. What a precision of ``auto`` means here, only PyTorch knows."""
    if not RunFolder(out).config.exists():
        return
    there = from_yaml(RunFolder(out).config)
    if config.engine.precision == "auto":
        engine = config.engine.model_copy(update={"precision": there.engine.precision})
        config = config.model_copy(update={"engine": engine})
    if difference := differing_setting(there, config):
        if there.data.root != config.data.root:  # what settings may follow from
            difference = f"its data is {there.data.root}, and here {config.data.root}; {difference}"
        raise InputError(
            f"{out} holds another run ({difference}); choose another --out, or delete that folder to start anew."
        )


def _check_launcher(engine: EngineConfig) -> None:
    """Refuse processes of torchrun that do not know of each other: all would write one run."""
    started, expected = os.environ.get("WORLD_SIZE"), engine.devices * engine.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ and started != str(expected):
        raise InputError(
            f"torchrun started {started} processes, and the settings are for {engine.devices} on each of "
            f"{engine.nodes} machine(s): give --engine.devices as its --nproc-per-node, --engine.nodes as its --nnodes."
        )


def check_batch_size(config: RunConfig) -> None:
    """Refuse a batch that the devices cannot share."""
    batch_size, devices = config.optim.batch_size, config.engine.devices * config.engine.nodes
    if batch_size % devices or batch_size < 2 * devices:
        raise InputError(
            f"optim.batch_size {batch_size} cannot be shared by {devices} device(s): each needs the same number of "
            "images, and at least two for its batch normalisation."
        )


def check_first_step_is_done(source: Path) -> None:
    """Refuse a folder from which no step 0 can be taken."""
    other = RunFolder(source)
    if not other.config.is_file() or not other.is_finished(0):
        raise InputError(f"--first-step {source} is not the folder of a run whose step 0 is done.")


def check_weights_file(weights: str) -> None:
    """Refuse encoder weights in a file that is not there."""
    if weights not in ("imagenet", "none") and not Path(weights).is_file():
        raise InputError(f"there is no weights file {weights}; give a file, 'imagenet' or 'none'.")


def check_rescoring(settings: Mapping[str, Any], config: RunConfig) -> None:
    """Refuse settings of a training that is over, and any setting for an extension, which has one evaluation only."""
    given = {f"{section}.{name}" for section, values in settings.items() for name in values}
    if given & SCORING and config.data.known is not None:
        raise InputError("an extension is scored in one way only, each class where it is labelled: give no settings.")
    for name in sorted(given - RESCORING):
        accepted = ", ".join(f"--{setting.replace('_', '-')}" for setting in sorted(RESCORING))
        raise InputError(
            f"--{name.replace('_', '-')} belongs to the training, which is over: 'incseg eval' takes {accepted}."
        )


def check_extension_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that the model or the folder decides."""
    for name, reason in IN_EXTENSIONS.items():
        section, _, key = name.partition(".")
        if section in settings and (not key or key in settings[section]):
            raise InputError(f"--{name.replace('_', '-')} cannot be set here: {reason}.")


def check_memory_run(run: Path, keep: int, out: Path) -> None:
    """Refuse to keep images of what is no run, or none, or where something is."""
    folder = RunFolder(run)
    if not folder.config.is_file() or not folder.finished_steps:
        raise InputError(f"{run} is not the folder of a run with a finished step: there is nothing to choose from.")
    if keep < 1:
        raise InputError(f"--keep {keep} keeps nothing: give the number of images to keep.")
    usable_folder(out)
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: choose another --out, or delete that folder.")


def check_memory(memory: int | None, replay: Path | None) -> None:
    """Refuse a number of old images without any."""
    if memory is not None and (replay is None or memory < 1):
        raise InputError("--memory says how many old images to use, 1 or more, and --replay DIR where they are.")
