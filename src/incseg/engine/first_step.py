"""Sharing step 0: methods that learn it alike need it learnt only once."""

import json
import shutil
from pathlib import Path

from incseg.config import RunConfig, differing_setting, flat_settings, from_yaml
from incseg.engine.checkpoint import RunFolder
from incseg.errors import InputError
from incseg.files import replacing
from incseg.methods import Method, parse

OF_LATER_STEPS = ("method", "settings.")  # what makes no difference to step 0, but for what the method makes of it


def first_step_identity(config: RunConfig) -> str:
    """All that step 0 depends on: runs that agree in it can share theirs."""
    names = {name: value for name, value in flat_settings(config).items() if not name.startswith(OF_LATER_STEPS)}
    return json.dumps([names, parse(config.method, config.settings).first_step], sort_keys=True)


def check_first_step(source: Path, config: RunConfig, method: Method) -> None:
    """Refuse a run whose step 0 is not what this run would have learnt itself."""
    other = RunFolder(source)
    if not other.config.is_file() or other.completed_step(0) is None:
        raise InputError(f"--first-step {source} is not the folder of a run whose step 0 is done.")
    theirs = from_yaml(other.config)
    difference = differing_setting(theirs, config, ignoring=OF_LATER_STEPS)
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
