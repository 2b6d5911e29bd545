"""A step 0 that need not be trained: that of another run, or a model trained anywhere."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from incseg.colours import DISTINCT, Colours
from incseg.config import SCORING, OptimConfig, RunConfig, differing_setting, flat_settings, from_yaml
from incseg.curriculum.curriculum import Curriculum
from incseg.datasets import dataset_entry
from incseg.engine.admission import check_first_step_is_done
from incseg.engine.checkpoint import FinishedStep
from incseg.errors import InputError
from incseg.files import replacing
from incseg.methods import Method, parse
from incseg.models import Segmenter
from incseg.models.storage import StepHistory, load_model
from incseg.models.tensor_file import read_tensors, write_tensors
from incseg.protocol import Protocol
from incseg.run_folder import RunFolder, read_metrics, write_metrics

# Settings that say nothing of step 0; what the method and its settings make of it, first_step_parts() says.
OF_LATER_STEPS = ("method", "settings.", *(f"optim.{name}" for name in OptimConfig.LATER_STEPS))


def check_first_step(source: Path, config: RunConfig, method: Method, curriculum: Curriculum) -> None:
    """Refuse a run whose step 0 is not what this run would train itself."""
    check_first_step_is_done(source)
    other = RunFolder(source)
    finished = FinishedStep.load(other, 0)
    assert finished is not None, "its step 0 is done"
    theirs = from_yaml(other.config)
    same_data = _same_first_data(theirs, finished.scores, curriculum)  # 15-5 and 15-1 begin with the same classes
    ignoring = (*OF_LATER_STEPS, *(["protocol"] if same_data else []))
    difference = differing_setting(theirs, config, ignoring=ignoring)
    if difference:
        # The model would be the same, but its scores are copied too, and a result must not mix two evaluations.
        scores = " (its scores come with it, and are of another evaluation)" if difference.split()[0] in SCORING else ""
        raise InputError(f"step 0 of {source} cannot be shared: {difference}{scores}.")
    their_method = parse(theirs.method, theirs.settings)
    if their_method.solves and not method.solves:
        raise InputError(
            f"step 0 of {source} cannot be shared: '{theirs.method}' solved its head in closed form, and "
            f"'{method.name}' trains; give a run whose step 0 is only trained."
        )
    there, here = first_step_parts(their_method), first_step_parts(method)
    if there != here:
        raise InputError(
            f"'{method.name}' trains step 0 differently from '{theirs.method}' of {source}: it needs its own "
            f"({_described(there)} there, {_described(here)} here)."
        )


def first_step_parts(method: Method) -> list[str]:
    """The parts of a method that make its step 0 differ from plain cross-entropy, with all their settings.

    A part is asked alone, because :attr:`Method.first_step` names only kinds: two settings of one part are one kind.
    """
    asked = [(replace(method, parts=(part,)).first_step, part) for part in method.parts]
    return sorted(f"{kind}: {part!r}" for kind, part in asked if kind)


def solving_parts(method: Method) -> list[str]:
    """The parts that solve a head after step 0, with all their settings: a solved head cannot be trained further."""
    return sorted(repr(part) for part in method.parts if part.solves)


def _described(parts: Sequence[str]) -> str:
    return " and ".join(parts) or "plain cross-entropy"


def first_step_identity(config: RunConfig, *, solved: bool = True) -> str:
    """All that step 0 depends on, as far as it is known without the data: runs with equal identities can share it.

    Without ``solved``, that of the trained network alone, to which a method that solves then gives its own head.

    Tasks that begin with the same number of classes have equal identities, unless the protocol distributes the images
    over all steps: then their first steps have different images.
    """
    protocol = Protocol.parse(config.protocol)
    distributed = protocol.setting.excludes_future and dataset_entry(protocol.dataset).disjoint == "balanced"
    first_classes = protocol.task if distributed else protocol.task.split("-")[0]
    ignored = ("protocol", *OF_LATER_STEPS)
    others = {name: value for name, value in flat_settings(config).items() if not name.startswith(ignored)}
    method = parse(config.method, config.settings)
    parts = [*first_step_parts(method), *(solving_parts(method) if solved else [])]
    return json.dumps([protocol.dataset, protocol.setting, first_classes, parts, others], sort_keys=True)


def _same_first_data(theirs: RunConfig, scores: Mapping[str, Any], curriculum: Curriculum) -> bool:
    """Whether a run, perhaps of another task, trained step 0 on the same classes and images."""
    there, here, step = Protocol.parse(theirs.protocol), curriculum.protocol, curriculum.steps[0]
    return (
        (there.dataset, there.setting) == (here.dataset, here.setting)
        and scores["new_classes"] == [curriculum.classes[channel] for channel in step.new]
        and scores["training_images"] == len(curriculum.shown(step))
    )


def copy_first_step(source: Path, folder: RunFolder, method: Method) -> bool:
    """Copy step 0 of another run, and what was logged of it; returns False where this run has one already."""
    other = RunFolder(source)
    if folder.is_finished(0):
        return False
    # The metrics first: once the step is there it counts as finished, and nothing more would be copied.
    write_metrics(folder.metrics, [entry for entry in read_metrics(other.metrics)[0] if entry["step"] == "step 0"])
    with replacing(folder.step(0)) as temporary:
        memory = folder.memory(0).name
        shutil.copytree(other.step(0), temporary, ignore=shutil.ignore_patterns(memory))
        write_tensors(temporary / memory, method.without_solved(read_tensors(other.memory(0))[1]))
    return True


@dataclass(frozen=True)
class GivenModel:
    """A trained network that is to learn more classes, with what its method remembers of its training."""

    segmenter: Segmenter
    history: Sequence[StepHistory] = ()
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    remembered_by: str = ""
    """The method's :attr:`Method.first_step`: what made its training differ from plain cross-entropy."""
    colours: Colours = DISTINCT
    """The palette in which its classes are drawn."""
    name: str = ""
    """What a person calls it."""


def check_given_model(given: GivenModel, folder: RunFolder, method: Method, *, has_old_images: bool = False) -> None:
    """Refuse a method that cannot extend this model, and a folder that began with another model."""
    check_extends(method, given.remembered_by, has_old_images=has_old_images)
    if folder.is_finished(0):
        there = load_model(folder.model(0))[0].state_dict()
        here = given.segmenter.state_dict()
        if there.keys() != here.keys() or not all(torch.equal(there[name], here[name].cpu()) for name in there):
            raise InputError(
                f"{folder.path} was begun with another model: choose another --out, or delete that folder."
            )


def remembered_by(model: Path) -> str:
    """What made the training of a model in a file differ from plain cross-entropy: its method's ``first_step``."""
    place = RunFolder.holding(model)
    if place is None:
        return ""
    try:
        run = from_yaml(place[0].config)
        return parse(run.method, run.settings).first_step
    except InputError:  # a method that is not installed here any more: nothing can continue from what it remembers
        return ""


def check_extends(method: Method, remembered: str, *, has_old_images: bool) -> None:
    """Refuse a method that needs old images, or more than is ``remembered`` of a model's training."""
    if method.keeps_data or (method.rehearses and not has_old_images):
        instead = "give some with --replay DIR" if method.rehearses else "use another method"
        raise InputError(
            f"'{method.name}' trains on images of earlier steps, and the images this model learnt from are not here: "
            f"{instead}."
        )
    continued = replace(method, parts=tuple(part for part in method.parts if not part.rehearses))
    if continued.first_step not in ("", remembered):
        raise InputError(
            f"'{method.name}' continues from what it remembers of earlier training, and this model comes without: "
            "give the folder of a run trained with it, or use a method without memory (see: incseg list methods)."
        )
