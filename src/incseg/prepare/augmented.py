"""The augmented masks of Pascal VOC: those of VOC itself, and those of the Semantic Boundaries Dataset for the rest.

The folder that circulates as SegmentationClassAug holds just this: in it, exactly the masks of VOC's own lists have the
ignored outline that VOC draws and the Semantic Boundaries Dataset does not.
"""

import importlib
import shutil
from pathlib import Path
from typing import Any

from incseg.data.palette import index_image
from incseg.data.scan import Progress, in_threads
from incseg.data.source import read_lines
from incseg.errors import InputError
from incseg.files import replacing

MASKS, TRAIN_LIST = "SegmentationClassAug", "train_aug.txt"


def build_augmented(voc: Path, boundaries: Path, progress: Progress) -> int:
    """Write ``SegmentationClassAug/`` and ``train_aug.txt`` into a VOC2012 folder; returns how many images these are.

    Args:
        voc: the VOC2012 folder.
        boundaries: the folder ``dataset`` of the Semantic Boundaries Dataset.
        progress: told of every mask.
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
                index_image(contents["GTcls"][0]["Segmentation"][0]).save(folder / f"{name}.png")

        for _ in in_threads(write, len(names), progress):
            pass
    with replacing(lists / TRAIN_LIST) as temporary:
        temporary.write_text("".join(f"{name}\n" for name in train), encoding="utf-8")
    return len(train)


def matlab_reader() -> Any:
    """SciPy's ``loadmat``; SciPy is needed for nothing else, and so is not installed with incseg."""
    try:
        return importlib.import_module("scipy.io").loadmat
    except ImportError:
        raise InputError(
            "the Semantic Boundaries Dataset is in MATLAB's format, which SciPy reads: pip install scipy, and run the "
            "same command again."
        ) from None
