"""Sharing step 0: methods that learn it alike need it learnt only once."""

import json
import shutil
from pathlib import Path

from incseg.config import RunConfig, from_yaml
from incseg.engine.checkpoint import RunFolder
from incseg.errors import InputError
from incseg.methods import Method, parse

SHARED = ("protocol", "seed", "data", "model", "optim")  # what step 0 depends on, besides the method


def adopt_first_step(source: Path, folder: RunFolder, config: RunConfig, method: Method) -> None:
    """Copy step 0 of another run into this one, if it is what this run would have learnt itself."""
    other = RunFolder(source)
    if folder.completed_step(0) is not None:
        return
    if not other.config.is_file() or other.completed_step(0) is None:
        raise InputError(f"--first-step {source} is not the folder of a run whose step 0 is done.")
    theirs = from_yaml(other.config)
    for section in SHARED:
        if getattr(theirs, section) != getattr(config, section):
            raise InputError(
                f"step 0 of {source} cannot be shared: its '{section}' settings differ "
                f"({getattr(theirs, section)} there, {getattr(config, section)} here)."
            )
    their_method = parse(theirs.method, theirs.settings)
    if their_method.first_step != method.first_step:
        raise InputError(f"'{method.name}' learns step 0 otherwise than '{their_method.name}': it needs its own.")
    shutil.copytree(other.step(0), folder.step(0), dirs_exist_ok=True)
    lines = other.metrics.read_text(encoding="utf-8").splitlines() if other.metrics.exists() else []
    shared = [line for line in lines if json.loads(line)["step"] == "step 0"]
    folder.metrics.write_text("".join(f"{line}\n" for line in shared), encoding="utf-8")
