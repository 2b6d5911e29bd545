"""Sharing step 0: methods that learn it alike need it learnt only once."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from incseg.config import RunConfig, differing_setting, flat_settings, from_yaml
from incseg.data.curriculum import Curriculum
from incseg.engine.checkpoint import RunFolder
from incseg.errors import InputError
from incseg.files import replacing
from incseg.methods import Method, parse
from incseg.protocol import Protocol, Setting

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
        raise InputError(f"step 0 of {source} cannot be shared: {difference}.")
    their_method = parse(theirs.method, theirs.settings)
    if their_method.first_step != method.first_step:
        raise InputError(f"'{method.name}' learns step 0 otherwise than '{their_method.name}': it needs its own.")


def first_step_identity(config: RunConfig) -> str:
    """All that step 0 depends on, as far as it can be told without the data: runs that agree in it can share theirs.

    Tasks that begin with the same classes agree in the overlapped setting. In the disjoint one it is for the dataset to
    say which images are left for step 0, so there only runs of one protocol agree.
    """
    protocol = Protocol.parse(config.protocol)
    first_classes = protocol.task.split("-")[0] if protocol.setting is Setting.OVERLAPPED else protocol.task
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
