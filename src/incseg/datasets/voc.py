"""Pascal VOC 2012 with the augmented masks: 10 582 training and 1 449 validation images, 20 classes."""

from pathlib import Path

from incseg.datasets.file_split import FileSplit
from incseg.datasets.source import Source, dataset, existing_root, read_lines
from incseg.errors import InputError

CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "dining table",
    "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa", "train", "tv monitor",
)  # fmt: skip
LAYOUT = "JPEGImages/, SegmentationClassAug/ and ImageSets/Segmentation/{train_aug,val}.txt (or a VOC2012/ with these)"
TRAIN_LISTS = ("train_aug.txt", "trainaug.txt")  # both spellings are in use


@dataset(
    "voc",
    "Pascal VOC 2012 with augmented masks, 20 classes",
    tasks=("19-1", "15-5", "15-1", "10-10", "10-1", "offline"),
    published_images=(10582, 1449),
    colours="voc",
)
def open_voc(root: Path | None) -> Source:
    """Read the image lists; ``root`` is the VOC2012 folder or a folder above it."""
    root = existing_root(root, "voc", LAYOUT)
    for inside in (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012"):
        if (inside / "ImageSets" / "Segmentation").is_dir():
            root = inside
            break
    else:
        raise InputError(f"--data-root {root} does not look like VOC 2012: it must hold {LAYOUT}.")
    lists = root / "ImageSets" / "Segmentation"
    train_list = next((lists / name for name in TRAIN_LISTS if (lists / name).exists()), None)
    if train_list is None:
        raise InputError(f"{lists} has no {' or '.join(TRAIN_LISTS)}: the list of the augmented training images.")
    return Source("voc", CLASSES, _files(root, train_list), _files(root, lists / "val.txt"))


def _files(root: Path, list_file: Path) -> FileSplit:
    """Lines are names, or ``/JPEGImages/X.jpg /SegmentationClassAug/X.png`` pairs as some copies of the list have."""
    names = [Path(line.split()[0]).stem for line in read_lines(list_file)]
    images = [root / "JPEGImages" / f"{name}.jpg" for name in names]
    masks = [root / "SegmentationClassAug" / f"{name}.png" for name in names]
    return FileSplit(names, images, masks)
