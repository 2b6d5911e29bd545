"""Lists of the training images of each step, as other codebases publish them: read and checked."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from incseg.datasets import Source, read_lines
from incseg.datasets.listed import check_lists
from incseg.errors import InputError, closest
from incseg.protocol import Protocol, Setting, Step

# A tiny object can vanish in a resized copy of a dataset. If more images than this share show none of the classes of
# their step, the lists belong to other data.
STRAY_IMAGES = 0.01

PARTITION = "imgs_per_task"  # the key of the lists in the files of the partitioned setting, which are JSON named .npy


@dataclass(frozen=True)
class StepList:
    """The images of one step, and the file that lists them."""

    where: Path
    indices: list[int]


Entries = Sequence[int | str]
"""Indices, or names of images."""


def read_lists(
    path: Path,
    ids: Sequence[str],
    protocol: Protocol,
    steps: Sequence[Step],
    classes: Sequence[str],
    first_by_rule: Sequence[int] | None = None,
) -> list[StepList]:
    """The images of every step, as indices in the dataset's order.

    ``path`` is a folder with a list for each step K, or a JSON file: of :meth:`Curriculum.describe`, which must be of
    this protocol, an array per step, or ``imgs_per_task`` as the partitioned setting is published. The list of a step
    is ``train-K.npy`` (as MiB and UCD ship them), ``train-K.json``, ``train-K.txt``, or ``overlap_TASK_train_KK.npy``
    (as DKD ships them), of indices or of names. Where the list of step 0 is not there, the step has the images
    ``first_by_rule``, if given.
    """
    check_lists(path)
    if path.is_file():
        learnt = [[classes[channel] for channel in step.new] for step in steps]
        return _read_json(path, ids, protocol, learnt)
    return [_read_list(path, ids, protocol, step.index, None if step.index else first_by_rule) for step in steps]


def _read_list(
    folder: Path, ids: Sequence[str], protocol: Protocol, step: int, by_rule: Sequence[int] | None
) -> StepList:
    names = [f"train-{step}{ending}" for ending in READERS]
    setting = "overlap" if protocol.setting is Setting.OVERLAPPED else protocol.setting
    names.append(f"{setting}_{protocol.task}_train_{step:02d}.npy")
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is not None:
        return StepList(found, _checked(found, READERS[found.suffix](found), ids))
    if by_rule is None:
        raise InputError(f"{folder} has none of {', '.join(names)}: every step needs its list.")
    return StepList(folder, list(by_rule))


def _read_array(path: Path) -> Entries:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is not an array of indices or names ({' '.join(str(error).split())}).") from None
    if array.ndim != 1 or array.dtype.kind not in "iuUS":
        raise InputError(
            f"{path} must hold whole numbers or names in one row; it holds {array.dtype} of shape {array.shape}."
        )
    entries: Entries = (np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array).tolist()
    return entries


def _read_json_array(path: Path) -> Entries:
    try:
        return _entries(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        raise InputError(f"{path} is not a JSON array of indices or of names.") from None


def _entries(values: object) -> Entries:
    """An array read from JSON, if it holds only indices or only names."""
    if isinstance(values, list):
        for kind in (int, str):
            if all(isinstance(value, kind) and not isinstance(value, bool) for value in values):
                return values
    raise ValueError


def _read_text(path: Path) -> Entries:
    return read_lines(path)


READERS: dict[str, Callable[[Path], Entries]] = {".npy": _read_array, ".json": _read_json_array, ".txt": _read_text}


def _checked(path: Path, entries: Entries, ids: Sequence[str]) -> list[int]:
    """The images that a list means, in the dataset's order; in text, numbers that are no names are indices."""
    if not entries:
        raise InputError(f"{path} is empty: every step needs an image.")
    found = [entry if isinstance(entry, int) else None for entry in entries]
    if None in found:
        found = _places(path, [str(entry) for entry in entries], ids)
    indices = [index for index in found if index is not None]
    if not 0 <= min(indices) <= max(indices) < len(ids):
        wrong = next(index for index in indices if not 0 <= index < len(ids))
        raise InputError(f"{path} lists the index {wrong}, but the dataset has {len(ids)} training images (from 0).")
    return sorted(set(indices))


def _places(path: Path, entries: Sequence[str], ids: Sequence[str]) -> list[int | None]:
    places = {name: index for index, name in enumerate(ids)}
    found = [places.get(entry, places.get(_name_in(entry))) for entry in entries]
    if None in found and path.suffix == ".txt" and all(entry.lstrip("-").isdigit() for entry in entries):
        return [int(entry) for entry in entries]
    if None in found:
        stranger = entries[found.index(None)]
        raise InputError(f"{path} lists '{stranger}', which is no image of the dataset.{closest(stranger, ids)}")
    return list(found)


def _name_in(entry: str) -> str:
    """The image's name in ``/JPEGImages/NAME.jpg /SegmentationClassAug/NAME.png``, as some lists of VOC have it."""
    return Path(entry.split(maxsplit=1)[0]).stem if entry.split() else ""


def _read_json(path: Path, ids: Sequence[str], protocol: Protocol, learnt: Sequence[Sequence[str]]) -> list[StepList]:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(described, dict) and PARTITION in described:
            described = [described[PARTITION][str(step)] for step in range(len(described[PARTITION]))]
        if isinstance(described, list) and described:
            return _arrays(path, [_entries(values) for values in described], ids, learnt)
        made_for = str(described["protocol"])
        lists = [[str(name) for name in step["images"]] for step in described["steps"]]
        classes = [list(step["classes"]) for step in described["steps"]]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} is not a file of lists as 'incseg data split --out' writes it, nor an array per step."
        ) from None
    if made_for != str(protocol):
        raise InputError(f"{path} has the lists of {made_for}, not of {protocol}.")
    for step, (theirs, ours) in enumerate(zip_longest(classes, learnt)):
        if theirs != ours:
            raise InputError(
                f"{path} is of another order of learning: its step {step} learns {_named(theirs)}, here it is "
                f"{_named(ours)}; give the --data.class-order it was made with."
            )
    return [StepList(path, _checked(path, names, ids)) for names in lists]


def _arrays(
    path: Path, arrays: Sequence[Entries], ids: Sequence[str], learnt: Sequence[Sequence[str]]
) -> list[StepList]:
    if len(arrays) != len(learnt):
        raise InputError(f"{path} has the lists of {len(arrays)} steps, and the protocol has {len(learnt)}.")
    return [StepList(path, _checked(path, entries, ids)) for entries in arrays]


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


def differences(lists: Sequence[StepList], by_rule: Sequence[Sequence[int]], ids: Sequence[str]) -> Iterator[str]:
    """In words, how lists differ from the protocol's rule, in both directions."""
    for step, (chosen, expected) in enumerate(zip(lists, by_rule, strict=True)):
        unexpected = sorted(set(chosen.indices) - set(expected))
        missing = sorted(set(expected) - set(chosen.indices))
        if unexpected:
            yield (
                f"{chosen.where}: {len(unexpected)} of the {len(chosen.indices)} images of step {step} do not belong "
                f"there by the protocol's rule ({ids[unexpected[0]]} for example)"
            )
        if missing:
            yield (
                f"{chosen.where}: {len(missing)} of the {len(expected)} images that step {step} has by the protocol's "
                f"rule are missing ({ids[missing[0]]} for example)"
            )


def beside_published(found: Sequence[int], published: Sequence[int] | None, has_rule: bool) -> str:
    """In words, the number of images of every step beside the published; empty where none is published."""
    if published is None:
        return ""
    if list(found) == list(published):
        return f"images per step: {', '.join(map(str, found))}, as many as published"
    pairs = zip(found, published, strict=True)
    numbers = ", ".join(str(ours) if ours == theirs else f"{ours} (published: {theirs})" for ours, theirs in pairs)
    advice = (
        "are all images and masks here, and in their original size?"
        if has_rule
        else "this protocol has no rule that gives the published lists: give them with --splits."
    )
    return f"images per step: {numbers}; {advice}"
