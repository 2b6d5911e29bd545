"""The data is the data: what a run learns from is recorded, so that a change is noticed when it resumes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from incseg.checksums import checksum
from incseg.curriculum.curriculum import Curriculum
from incseg.datasets import Split
from incseg.datasets.contents import Record, is_same, recorded, with_content
from incseg.datasets.formats.conversion import is_painted
from incseg.errors import InputError
from incseg.run_folder import RunFolder, read_json, write_json

SHOWN = 3  # names of files in a sentence


def fingerprint(curriculum: Curriculum, root: Path | None) -> dict[str, Any]:
    """Folder, classes, names of the images, size and time of every file, and which images each step learns from.

    Where 'incseg data check --full' has recorded it, also the content of every file.
    """
    splits, known = curriculum.splits(), recorded(root)
    files = {name: seen for split in splits.values() for name, seen in _files(split, root, known).items()}
    ids = curriculum.source.train.ids
    return {
        "root": None if root is None else str(root),
        "classes": list(curriculum.classes),
        "images": {name: checksum("\n".join(split.ids).encode()) for name, split in splits.items()},
        "steps": [checksum("\n".join(ids[index] for index in chosen).encode()) for chosen in curriculum.indices],
        "files": files,
    }


def check_data(folder: RunFolder, here: Mapping[str, Any], *, accept: bool) -> None:
    """Refuse data that is not what the run began with, unless told to accept it and something is left to learn."""
    if not folder.data.exists():
        return
    there = read_json(folder.data)
    if not accept and (change := difference(there, here)):
        raise InputError(
            f"the data of {folder.path} has changed since it began: {change}. Put it back, choose another --out, or go "
            "on with the changed data: --data.changed accept."
        )
    is_finished = len(folder.finished_steps) == len(here["steps"])
    if is_finished and (change := difference({**there, "root": here["root"]}, here)):
        raise InputError(
            f"the data of {folder.path} has changed since it began: {change}. The run is finished and has learnt from "
            "the data as it was: choose another --out to learn from it as it is."
        )


def record_data(folder: RunFolder, here: Mapping[str, Any]) -> None:
    """Write the fingerprint, if it is not there already; contents once known are kept."""
    before = read_json(folder.data) if folder.data.exists() else {}
    there = before.get("files", {})
    files = {name: max(there.get(name, ""), seen, key=len) for name, seen in here["files"].items()}
    kept = {name: seen if is_same(seen, here["files"][name]) else here["files"][name] for name, seen in files.items()}
    if before != (now := {**here, "files": kept}):
        write_json(folder.data, now)


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What changed, in words; empty if nothing did."""
    if there.get("root") != here["root"]:
        return f"it was {there.get('root')} and is {here['root']}"
    if there.get("classes") != here["classes"]:
        pairs = zip(there.get("classes", []), here["classes"], strict=False)
        changed = [f"'{one}' is now '{two}'" for one, two in pairs if one != two]
        return f"the classes are others ({changed[0] if changed else 'some are gone or added'})"
    one, two = there.get("files", {}), here["files"]
    if any(is_painted(Path(name)) for name in one.keys() - two.keys()):
        return "its annotations, or the files beside them, are not as they were"
    for names, what in (
        (sorted(one.keys() - two.keys()), "gone"),
        (sorted(two.keys() - one.keys()), "new"),
        ([name for name in two if name in one and not is_same(one[name], two[name])], "changed"),
    ):
        if names:
            return f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {what}"
    if there.get("images") != here["images"]:
        return "the lists of images are others"
    return "" if there.get("steps") == here["steps"] else "the steps learn from other images"


def _files(split: Split, root: Path | None, known: Record) -> dict[str, str]:
    paths = [path for index in range(len(split)) for path in split.files(index)]
    return {_name(path, root): with_content(path, known) for path in paths}


def _name(path: Path, root: Path | None) -> str:
    return str(path.relative_to(root)) if root is not None and path.is_relative_to(root) else str(path)


def _listed(names: Sequence[str]) -> str:
    others = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{others}"
