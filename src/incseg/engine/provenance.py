"""What made a result: versions, machine, and where the package is used from a checkout, its commit."""

import platform
import subprocess
from functools import cache
from pathlib import Path

import lightning
import torch
from lightning.fabric import Fabric

import incseg


def environment(fabric: Fabric) -> dict[str, str]:
    """For ``result.json``."""
    device = torch.cuda.get_device_name() if fabric.device.type == "cuda" else platform.machine()
    commit = source_commit(Path(incseg.__file__).parent)
    return {
        "incseg": incseg.__version__,
        **({"commit": commit} if commit else {}),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "python": platform.python_version(),
        "device": f"{fabric.device.type} ({device}) × {fabric.world_size}",
    }


@cache
def source_commit(package: Path) -> str:
    """The commit of the checkout that a package is used from, marked if files were changed since; empty if installed.

    An environment may lie inside a checkout of something else, so the package itself must be under version control.
    """

    def git(*words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes")
    except (OSError, subprocess.SubprocessError):
        return ""
