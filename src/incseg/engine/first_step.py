"""A step 0 that is there already: learnt by another run, or a model given from anywhere."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from incseg.config import RunConfig, differing_setting, from_yaml
from incseg.engine.checkpoint import RunFolder
from incseg.errors import InputError
from incseg.files import replacing
from incseg.methods import Method, parse
from incseg.models import Segmenter
from incseg.models.storage import Record, load_model


def check_first_step(source: Path, config: RunConfig, method: Method) -> None:
    """Refuse a run whose step 0 is not what this run would have learnt itself."""
    other = RunFolder(source)
    if not other.config.is_file() or other.completed_step(0) is None:
        raise InputError(f"--first-step {source} is not the folder of a run whose step 0 is done.")
    theirs = from_yaml(other.config)
    difference = differing_setting(theirs, config, ignoring=("method", "settings."))
    if difference:
        raise InputError(f"step 0 of {source} cannot be shared: {difference}.")
    their_method = parse(theirs.method, theirs.settings)
    if their_method.first_step != method.first_step:
        raise InputError(f"'{method.name}' learns step 0 otherwise than '{their_method.name}': it needs its own.")


def copy_first_step(source: Path, folder: RunFolder) -> None:
    """Copy step 0 of another run, and what was logged of it, unless this run has its own."""
    other = RunFolder(source)
    if folder.completed_step(0) is not None:
        return
    with replacing(folder.step(0)) as temporary:
        shutil.copytree(other.step(0), temporary)
    lines = other.metrics.read_text(encoding="utf-8").splitlines() if other.metrics.exists() else []
    shared = [line for line in lines if json.loads(line)["step"] == "step 0"]
    with replacing(folder.metrics) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in shared), encoding="utf-8")


@dataclass(frozen=True)
class GivenModel:
    """A trained network that is to learn more, with what its method may remember of how it was trained."""

    segmenter: Segmenter
    history: Sequence[Record] = ()
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    remembered_by: str = ""
    """What distinguished its training from plain cross-entropy; see :attr:`Method.first_step`."""


def check_given_model(given: GivenModel, folder: RunFolder, method: Method) -> None:
    """Refuse a method that cannot go on from this model, and a folder in which another model was begun with."""
    if method.keeps_data:
        raise InputError(f"'{method.name}' learns from the data of all steps, and of a given model's there is none.")
    if method.first_step not in ("", given.remembered_by):
        raise InputError(
            f"'{method.name}' goes on from what it remembers of earlier training, and the model has none of that: give "
            "the folder of a run trained with it, or use another method, for example mib+ucd."
        )
    if folder.completed(0):
        there = load_model(folder.model(0))[0].state_dict()
        here = given.segmenter.state_dict()
        if there.keys() != here.keys() or not all(torch.equal(there[name], here[name].cpu()) for name in there):
            raise InputError(
                f"{folder.path} was begun with another model: choose another --out, or delete that folder."
            )
