"""Which of the given paths are runs: ``incseg report runs/*`` also meets pages, notes and unfinished runs."""

from collections.abc import Sequence
from glob import glob
from pathlib import Path

from incseg.console import Console
from incseg.errors import InputError
from incseg.results import RECORD, Run
from incseg.run_folder import RunFolder


def choose_runs(paths: Sequence[Path], console: Console) -> list[Path]:
    """The runs among the paths; what else is there is named in one line. A path that does not exist is a mistake."""
    paths = [found for path in paths for found in _matching(path)]
    runs = [path for path in paths if RunFolder(path).result.is_file()]
    others = [path for path in paths if path not in runs]
    if not runs:
        file = RunFolder(others[0]).result.name
        names = f"none of {', '.join(map(str, others))} holds a" if len(others) > 1 else f"{others[0]} holds no"
        raise InputError(f"{names} {file}: give the folder of a run with at least one step done.{_inside(others)}")
    if others:
        names = ", ".join(map(str, others))
        console.say(f"left out, since not a run with a finished step: {names}.{_inside(others)}")
    return runs


def find_results(paths: Sequence[Path], console: Console) -> list[Run]:
    """Finished runs and records of them, also those in folders; runs that are not finished are named and left out."""
    found: list[Run] = []
    for named in (one for given in paths for one in _matching(given)):
        path = named.parent if named.name == RunFolder(named).result.name else named
        places = [path] if path.is_file() or _is_run(path) else _results_below(path)
        if not places:
            raise InputError(f"{path} holds neither runs nor records of runs (*{RECORD}).")
        found += [Run.read(place) for place in places]
    unfinished = [str(run.folder) for run in found if not run.is_complete]
    if unfinished:
        console.say(f"left out, since not finished: {', '.join(unfinished)}.")
    complete = [run for run in found if run.is_complete]
    if not complete:
        raise InputError("none of the runs is finished: there is nothing to list.")
    return sorted(complete, key=lambda run: (run.protocol, run.method, run.seed))


def _results_below(folder: Path) -> list[Path]:
    runs = [path.parent for path in folder.rglob(RunFolder(folder).result.name)]
    return sorted([*runs, *folder.rglob(f"*{RECORD}")])


def _matching(path: Path) -> list[Path]:
    """The path itself, or what a pattern such as runs/* stands for, where no shell has put that in its place."""
    found = [path] if path.exists() else [Path(name) for name in sorted(glob(str(path)))]  # noqa: PTH207 - may be absolute
    if not found:
        raise InputError(f"there is no {path}: give folders of runs.")
    return found


def _inside(folders: Sequence[Path]) -> str:
    """Where runs lie one level further down, how to give them."""
    found = [folder for folder in folders if folder.is_dir() and any(map(_is_run, folder.iterdir()))]
    return f" There are runs in it: {' '.join(f'{folder}/*' for folder in found)}" if found else ""


def _is_run(path: Path) -> bool:
    return RunFolder(path).result.is_file()
