"""Cityscapes with fine annotations: 2 975 training and 500 validation images, 19 classes.

The mask files hold label ids, or train ids where there are only ``*_labelTrainIds.png``; here a class's id is its train
id plus one, as in UCD. Everything that is not one of the 19 classes is void, 255. The settings ``data.void`` and
``data.scored_void`` say what that means in training and in scoring; the recipes make it background, as UCD does.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from incseg.datasets.file_split import FileSplit
from incseg.datasets.source import Domains, Source, dataset, existing_root
from incseg.errors import InputError
from incseg.protocol import IGNORE

LABEL_IDS = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
CLASSES = ("background", *LABEL_IDS)
LAST_LABEL_ID = 33
# The order of PLOP's domain protocols: 18 cities of the training split, then the three of the validation split.
CITIES = (
    "aachen", "bremen", "darmstadt", "erfurt", "hanover", "krefeld", "strasbourg", "tubingen", "weimar", "bochum",
    "cologne", "dusseldorf", "hamburg", "jena", "monchengladbach", "stuttgart", "ulm", "zurich",
    "frankfurt", "lindau", "munster",
)  # fmt: skip
IMAGE, MASK = "leftImg8bit", "gtFine"
SUFFIXES = {IMAGE: "_leftImg8bit.png", MASK: "_gtFine_labelIds.png"}
TRAIN_ID_SUFFIX = "_gtFine_labelTrainIds.png"
LAYOUT = "leftImg8bit/{train,val}/CITY/*_leftImg8bit.png and gtFine/{train,val}/CITY/*_gtFine_labelIds.png"


def looks_like_train_ids(shown: frozenset[int]) -> str:
    """Train ids go from 0 to 18; read as label ids they show the first six classes and void, and no other class."""
    within = {index for index, label_id in enumerate(LABEL_IDS.values(), start=1) if label_id < len(LABEL_IDS)}
    if not shown & within or shown - within - {IGNORE}:
        return ""
    return (
        f"only {', '.join(CLASSES[index] for index in sorted(within))} occur, as when masks named *_labelIds.png hold "
        "train ids (0 to 18): put the label ids (0 to 33) of the official archive in their place."
    )


@dataset(
    "cityscapes",
    "Cityscapes street scenes with fine annotations, 19 classes",
    tasks=("13-6", "13-1", "14-1", "offline"),
    domain_tasks=("11-5", "11-1", "1-1"),
    published_images=(2975, 500),
    doubt=looks_like_train_ids,
    disjoint="balanced",  # almost every image shows a car: the plain rule would leave step 0 almost no images
)
def open_cityscapes(root: Path | None) -> Source:
    """List the files, by city and name; ``root`` holds ``leftImg8bit`` and ``gtFine``, or folders that hold them."""
    root = existing_root(root, "cityscapes", LAYOUT)
    train, val = _files(root, "train"), _files(root, "val")
    return Source("cityscapes", CLASSES, train, val, domains=_cities([*train.ids, *val.ids]))


def _cities(names: Sequence[str]) -> Domains:
    """Those of these images, in the order in which PLOP learns them; others come last."""
    found = {city_of(name) for name in names}
    known = [city for city in CITIES if city in found]
    return Domains((*known, *sorted(found - {*known})), city_of, shared_out=True)


def city_of(name: str) -> str:
    """The first word of an image's name."""
    return name.split("_", maxsplit=1)[0]


def _files(root: Path, split: str) -> FileSplit:
    """All names in either folder; a missing image or mask is reported by ``open_source`` and ``data check``."""
    folders = {part: _find(root, part) / split for part in SUFFIXES}
    has_train_ids = not _scenes(folders[MASK], SUFFIXES[MASK]) and bool(_scenes(folders[MASK], TRAIN_ID_SUFFIX))
    suffixes = {**SUFFIXES, MASK: TRAIN_ID_SUFFIX} if has_train_ids else SUFFIXES
    scenes = sorted({scene for part, folder in folders.items() for scene in _scenes(folder, suffixes[part])})
    if not scenes:
        raise InputError(f"{folders[IMAGE]} and {folders[MASK]} hold no image and no mask: Cityscapes is {LAYOUT}.")
    images, masks = ([folders[part] / city / f"{name}{suffixes[part]}" for city, name in scenes] for part in SUFFIXES)
    return FileSplit([name for _, name in scenes], images, masks, train_id_table() if has_train_ids else id_table())


def _find(root: Path, part: str) -> Path:
    """The folder ``part`` in the root or one level below it, since the official archives may be unpacked side by side.

    Of several, the one with both splits: the archive of extra images has a ``leftImg8bit`` too, but neither split.
    """
    candidates = [folder for folder in (root / part, *sorted(root.glob(f"*/{part}"))) if folder.is_dir()]
    if not candidates:
        raise InputError(
            f"--data-root {root} does not look like Cityscapes: there is no {part}/; it must hold {LAYOUT}."
        )
    return max(candidates, key=lambda folder: sum((folder / split).is_dir() for split in ("train", "val")))


def _scenes(folder: Path, suffix: str) -> set[tuple[str, str]]:
    if not folder.is_dir():
        raise InputError(f"{folder} is missing: Cityscapes is {LAYOUT}.")
    found = (path for path in folder.glob(f"*/*{suffix}") if not path.name.startswith("."))
    return {(path.parent.name, path.name.removesuffix(suffix)) for path in found}


def id_table() -> NDArray[np.uint8]:
    """(256,) label id in a file → id of the dataset; ids that Cityscapes does not have stay, to be refused later."""
    table = np.arange(IGNORE + 1, dtype=np.uint8)
    table[: LAST_LABEL_ID + 1] = IGNORE
    for dataset_id, label_id in enumerate(LABEL_IDS.values(), start=1):
        table[label_id] = dataset_id
    return table


def train_id_table() -> NDArray[np.uint8]:
    """(256,) train id in a file → id of the dataset, one more; ids that are no train ids become ones to be refused."""
    table = np.full(IGNORE + 1, len(CLASSES), dtype=np.uint8)
    table[: len(LABEL_IDS)] = np.arange(1, len(CLASSES))
    table[IGNORE] = IGNORE
    return table
