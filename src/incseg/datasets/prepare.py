"""Downloads and unpacks the datasets that may be downloaded, and builds the augmented masks of VOC."""

import importlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incseg.datasets import ReportProgress, Source, dataset_entry, open_source, read_lines
from incseg.datasets.archives import Archive, fetch, unpack
from incseg.datasets.scan import in_threads
from incseg.errors import InputError
from incseg.files import replacing, usable_folder
from incseg.images import index_image

ADE20K = Archive(
    "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
    md5="7328b3957e407ddae1d3cbf487f149ef",
    size="0.9 GB",
)
VOC = Archive(
    "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
    md5="6cd6e144f989b92b3379bac3b3de84fd",
    size="2.0 GB",
)
BOUNDARIES = Archive(
    "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/semantic_contours/benchmark.tgz",
    md5="82b4d87ceb2ed10f6038a1cba92111cb",
    size="1.4 GB",
)
CITYSCAPES_ARCHIVES = ("leftImg8bit_trainvaltest.zip", "gtFine_trainvaltest.zip")

ShowProgress = Callable[[str], AbstractContextManager[ReportProgress]]  # title of a task -> a progress bar for it


@dataclass(frozen=True)
class Preparation:
    """Where the dataset goes, and how progress is shown."""

    root: Path
    show_progress: ShowProgress

    def get(self, archive: Archive) -> None:
        """Download an archive and unpack it."""
        with self.show_progress(f"downloading {archive.name}") as report_progress:
            path = fetch(archive, self.root, report_progress)
        self.unpack(path)

    def unpack(self, path: Path) -> None:
        """Unpack an archive that has been downloaded."""
        with self.show_progress(f"unpacking {path.name}") as report_progress:
            unpack(path, self.root, report_progress)


def prepare(name: str, root: Path, show_progress: ShowProgress) -> Source:
    """Make a dataset ready below ``root``, or say what the user has to do; finished work is not repeated."""
    entry = dataset_entry(name)
    if name not in STEPS:
        raise InputError(f"'{name}' needs no preparation: {entry.summary}.")
    usable_folder(root)
    try:
        if not _is_ready(name, root):
            STEPS[name](Preparation(root, show_progress))
    except OSError as error:
        raise InputError(f"{name} cannot be prepared in {root}: {error}.") from None
    return open_source(name, root)


def _is_ready(name: str, root: Path) -> bool:
    try:
        source = open_source(name, root)
    except InputError:
        return False
    return (len(source.train), len(source.val)) == dataset_entry(name).published_images


def _prepare_voc(preparation: Preparation) -> None:
    matlab_reader()  # if it is not installed, say so before two downloads
    preparation.get(VOC)
    preparation.get(BOUNDARIES)
    root = preparation.root
    with preparation.show_progress("writing the augmented masks") as report_progress:
        build_augmented(root / "VOCdevkit" / "VOC2012", root / "benchmark_RELEASE" / "dataset", report_progress)


def _prepare_ade20k(preparation: Preparation) -> None:
    preparation.get(ADE20K)


def _prepare_cityscapes(preparation: Preparation) -> None:
    """Its licence requires an account, so the user has to download it."""
    archives = [preparation.root / name for name in CITYSCAPES_ARCHIVES]
    missing = [path.name for path in archives if not path.is_file()]
    if missing:
        raise InputError(
            f"Cityscapes may be downloaded only with an account of its own: get {' and '.join(missing)} from "
            f"https://www.cityscapes-dataset.com/downloads, put them into {preparation.root}, and run the same command "
            "again."
        )
    for path in archives:
        preparation.unpack(path)


STEPS: dict[str, Callable[[Preparation], None]] = {
    "ade20k": _prepare_ade20k,
    "cityscapes": _prepare_cityscapes,
    "voc": _prepare_voc,
}


MASKS, TRAIN_LIST = "SegmentationClassAug", "train_aug.txt"


def build_augmented(voc: Path, boundaries: Path, report_progress: ReportProgress) -> int:
    """Write ``SegmentationClassAug/`` and ``train_aug.txt`` into a VOC2012 folder; returns the number of images listed.

    Args:
        voc: the VOC2012 folder.
        boundaries: the folder ``dataset`` of the Semantic Boundaries Dataset.
        report_progress: called after every mask.
    """
    lists = voc / "ImageSets" / "Segmentation"
    own_train, own_val = read_lines(lists / "train.txt"), read_lines(lists / "val.txt")
    theirs = {*read_lines(boundaries / "train.txt"), *read_lines(boundaries / "val.txt")}
    train = sorted((theirs | set(own_train)) - set(own_val))
    own = {*own_train, *own_val}
    names = sorted({*train, *own_val})
    read_matlab = matlab_reader()
    with replacing(voc / MASKS) as folder:
        folder.mkdir()

        def write(index: int) -> None:
            name = names[index]
            if name in own:
                shutil.copyfile(voc / "SegmentationClass" / f"{name}.png", folder / f"{name}.png")
            else:
                contents = read_matlab(boundaries / "cls" / f"{name}.mat")
                index_image(contents["GTcls"][0]["Segmentation"][0], "voc").save(folder / f"{name}.png")

        for _ in in_threads(write, len(names), report_progress):
            pass
    with replacing(lists / TRAIN_LIST) as temporary:
        temporary.write_text("".join(f"{name}\n" for name in train), encoding="utf-8")
    return len(train)


def matlab_reader() -> Any:
    """SciPy's ``loadmat``; incseg needs SciPy for nothing else, so it is not among its dependencies."""
    try:
        return importlib.import_module("scipy.io").loadmat
    except ImportError:
        raise InputError(
            "the Semantic Boundaries Dataset is in MATLAB's format, which SciPy reads: pip install scipy, and run the "
            "same command again."
        ) from None
