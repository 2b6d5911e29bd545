"""A step 0 that is there already: learnt by another run, or a model given from anywhere."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from incseg.config import SCORING, RunConfig, differing_setting, flat_settings, from_yaml
from incseg.curriculum.curriculum import Curriculum
from incseg.datasets import dataset_entry
from incseg.errors import InputError
from incseg.files import replacing
from incseg.methods import Method, parse
from incseg.models import Segmenter
from incseg.models.storage import Record, load_model
from incseg.protocol import Protocol, Setting
from incseg.run_folder import RunFolder

OF_LATER_STEPS = ("method", "settings.")  # no difference to step 0 but by what the method makes of it


def check_first_step(source: Path, config: RunConfig, method: Method, curriculum: Curriculum) -> None:
    """Refuse a run whose step 0 is not what this run would have learnt itself."""
    other = RunFolder(source)
    done = other.completed_step(0) if other.config.is_file() else None
    if done is None:
        raise InputError(f"--first-step {source} is not the folder of a run whose step 0 is done.")
    theirs = from_yaml(other.config)
    same_data = _begins_alike(theirs, done[1], curriculum)  # 15-5 and 15-1 begin with the same fifteen classes
    ignoring = (*OF_LATER_STEPS, *(["protocol"] if same_data else []))
    difference = differing_setting(theirs, config, ignoring=ignoring)
    if difference:
        # The model would be the same; but its scores come along, and a result must not mix two evaluations.
        scores = " (its scores come with it, and are of another evaluation)" if difference.split()[0] in SCORING else ""
        raise InputError(f"step 0 of {source} cannot be shared: {difference}{scores}.")
    their_method = parse(theirs.method, theirs.settings)
    if their_method.first_step != method.first_step:
        raise InputError(f"'{method.name}' learns step 0 otherwise than '{their_method.name}': it needs its own.")


def first_step_identity(config: RunConfig) -> str:
    """All that step 0 depends on, as far as it can be told without the data: runs that agree in it can share theirs.

    Tasks that begin with the same classes agree, but where the images are shared out among all steps: there only runs
    of one task do.
    """
    protocol = Protocol.parse(config.protocol)
    shared_out = protocol.setting is Setting.DISJOINT and dataset_entry(protocol.dataset).disjoint == "balanced"
    first_classes = protocol.task if shared_out else protocol.task.split("-")[0]
    ignored = ("protocol", *OF_LATER_STEPS)
    others = {name: value for name, value in flat_settings(config).items() if not name.startswith(ignored)}
    method = parse(config.method, config.settings)
    return json.dumps([protocol.dataset, protocol.setting, first_classes, method.first_step, others], sort_keys=True)


def _begins_alike(theirs: RunConfig, scores: Mapping[str, Any], curriculum: Curriculum) -> bool:
    """Whether a run of perhaps another task learnt the same first classes from the same images."""
    there, here, step = Protocol.parse(theirs.protocol), curriculum.protocol, curriculum.steps[0]
    return (
        (there.dataset, there.setting) == (here.dataset, here.setting)
        and scores["new_classes"] == [curriculum.classes[channel] for channel in step.new]
        and scores["training_images"] == len(curriculum.shown(step))
    )


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
    if method.keeps_data or method.rehearses:
        raise InputError(
            f"'{method.name}' learns from images of earlier steps, and none of those that taught this model is here."
        )
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
