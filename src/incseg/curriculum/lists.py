"""Lists of the training images of each step, as other codebases publish them: read and checked."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from incseg.datasets import Source, read_lines
from incseg.errors import InputError, closest
from incseg.protocol import Protocol, Step

# A tiny object can vanish in a resized copy of a dataset. If more images than this share show none of the classes of
# their step, the lists belong to other data.
STRAY_IMAGES = 0.01


@dataclass(frozen=True)
class StepList:
    """The images of one step, and the file that lists them."""

    where: Path
    indices: list[int]


def read_lists(
    path: Path, ids: Sequence[str], protocol: Protocol, steps: Sequence[Step], classes: Sequence[str]
) -> list[StepList]:
    """The images of every step, as indices in the dataset's order.

    ``path`` is a folder with ``train-K.npy`` (indices, as MiB and UCD ship them) or ``train-K.txt`` (an index or a name
    per line) for each step K, or a JSON file of :meth:`Curriculum.describe`, which must be of this protocol.
    """
    if path.is_file():
        learnt = [[classes[channel] for channel in step.new] for step in steps]
        return _read_json(path, ids, protocol, learnt)
    if not path.is_dir():
        raise InputError(f"--splits {path} is neither a folder of lists (train-0.npy, …) nor a .json file of them.")
    return [_read_list(path, ids, step.index) for step in steps]


def _read_list(folder: Path, ids: Sequence[str], step: int) -> StepList:
    arrays, text = folder / f"train-{step}.npy", folder / f"train-{step}.txt"
    if arrays.is_file():
        return StepList(arrays, _checked(arrays, _indices(arrays), ids))
    if text.is_file():
        return StepList(text, _checked(text, read_lines(text), ids))
    raise InputError(f"{folder} has neither train-{step}.npy nor train-{step}.txt: every step needs its list.")


def _indices(path: Path) -> list[str]:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is not an array of indices ({' '.join(str(error).split())}).") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{path} must hold whole numbers in one row; it holds {array.dtype} of shape {array.shape}.")
    return [str(index) for index in array.tolist()]


def _checked(path: Path, entries: Sequence[str], ids: Sequence[str]) -> list[int]:
    """Names if all are names of the dataset, else indices."""
    if not entries:
        raise InputError(f"{path} is empty: every step needs an image.")
    places = {name: index for index, name in enumerate(ids)}
    if path.suffix != ".npy" and all(entry in places for entry in entries):
        found = [places[entry] for entry in entries]
    elif all(entry.lstrip("-").isdigit() for entry in entries):
        found = [int(entry) for entry in entries]
    else:
        stranger = next(entry for entry in entries if entry not in places)
        raise InputError(f"{path} lists '{stranger}', which is no image of the dataset.{closest(stranger, ids)}")
    if not 0 <= min(found) <= max(found) < len(ids):
        wrong = next(index for index in found if not 0 <= index < len(ids))
        raise InputError(f"{path} lists the index {wrong}, but the dataset has {len(ids)} training images (from 0).")
    return sorted(set(found))


def _read_json(path: Path, ids: Sequence[str], protocol: Protocol, learnt: Sequence[Sequence[str]]) -> list[StepList]:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        made_for = str(described["protocol"])
        lists = [[str(name) for name in step["images"]] for step in described["steps"]]
        classes = [list(step["classes"]) for step in described["steps"]]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a file of lists as 'incseg data split --out' writes it.") from None
    if made_for != str(protocol):
        raise InputError(f"{path} has the lists of {made_for}, not of {protocol}.")
    for step, (theirs, ours) in enumerate(zip_longest(classes, learnt)):
        if theirs != ours:
            raise InputError(
                f"{path} is of another order of learning: its step {step} learns {_named(theirs)}, here it is "
                f"{_named(ours)}; give the --data.class-order it was made with."
            )
    return [StepList(path, _checked(path, names, ids)) for names in lists]


def _named(classes: Sequence[str] | None) -> str:
    return ", ".join(classes) if classes else "nothing"


def refuse_strays(
    lists: Sequence[StepList],
    presence: Sequence[frozenset[int]],
    steps: Sequence[Step],
    source: Source,
    order: Sequence[int],
) -> None:
    """Refuse lists whose images do not show what their step learns: their indices belong to other data."""
    for step, chosen in zip(steps, lists, strict=True):
        new = {order[channel] for channel in step.new}
        strays = [index for index in chosen.indices if not presence[index] & new]
        if len(strays) > STRAY_IMAGES * len(chosen.indices):
            raise InputError(
                f"{chosen.where} gives step {step.index} the image {source.train.ids[strays[0]]}, which shows none of "
                f"its classes (as do {len(strays)} of the {len(chosen.indices)}): it is a list for another task, class "
                "order or order of the files."
            )
