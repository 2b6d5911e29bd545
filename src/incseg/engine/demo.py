"""The demonstration: the same steps with four methods, from one shared step 0, on the embedded data."""

from collections.abc import Sequence
from pathlib import Path

from incseg.config import load_recipe
from incseg.console import Console
from incseg.engine.assembly import train

METHODS = ("ft", "mib", "mib+ucd", "joint")


def run_demo(out: Path, seed: int, console: Console, methods: Sequence[str] = METHODS) -> list[Path]:
    """Train every method; returns the folders of the runs, in order. What is already done is not done again."""
    folders: list[Path] = []
    for method in methods:
        config = load_recipe("demo", {"method": method, "seed": seed})
        folder = out / method
        train(config, folder, first_step=folders[0] if folders else None, console=console)
        folders.append(folder)
    return folders
