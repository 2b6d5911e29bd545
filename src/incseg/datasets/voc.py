"""Pascal VOC 2012 with the augmented masks: 10 582 training and 1 449 validation images, 20 classes."""

from pathlib import Path

from incseg.datasets.file_split import FileSplit
from incseg.datasets.source import Source, dataset, existing_root, read_lines
from incseg.errors import InputError

CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "dining table",
    "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa", "train", "tv monitor",
)  # fmt: skip
# The class orders of PLOP's repository, by the letters it gives them; its 15-1 learns the last five one at a time.
PLOP_ORDERS = {
    "b": (12, 9, 20, 7, 15, 8, 14, 16, 5, 19, 4, 1, 13, 2, 11, 17, 3, 6, 18, 10),
    "c": (13, 19, 15, 17, 9, 8, 5, 20, 4, 3, 10, 11, 18, 16, 7, 12, 14, 6, 1, 2),
    "d": (15, 3, 2, 12, 14, 18, 20, 16, 11, 1, 19, 8, 10, 7, 17, 6, 5, 13, 9, 4),
    "e": (7, 5, 3, 9, 13, 12, 14, 19, 10, 2, 1, 4, 16, 8, 17, 15, 18, 6, 11, 20),
    "f": (7, 13, 5, 11, 9, 2, 15, 12, 14, 3, 20, 1, 16, 4, 18, 8, 6, 10, 19, 17),
    "g": (7, 5, 9, 1, 15, 18, 14, 3, 20, 10, 4, 19, 11, 17, 16, 12, 8, 6, 2, 13),
    "h": (12, 9, 19, 6, 4, 10, 5, 18, 14, 15, 16, 3, 8, 7, 11, 13, 2, 20, 17, 1),
    "i": (13, 10, 15, 8, 7, 19, 4, 3, 16, 12, 14, 11, 5, 20, 6, 2, 18, 9, 17, 1),
    "j": (1, 14, 9, 5, 2, 15, 8, 20, 6, 16, 18, 7, 11, 10, 19, 3, 4, 17, 12, 13),
    "k": (16, 13, 1, 11, 12, 18, 6, 14, 5, 3, 7, 9, 20, 19, 15, 4, 2, 10, 8, 17),
    "l": (10, 7, 6, 19, 16, 8, 17, 1, 14, 4, 9, 3, 15, 11, 12, 2, 18, 20, 13, 5),
    "m": (18, 4, 14, 17, 12, 10, 7, 3, 9, 1, 8, 15, 6, 13, 2, 5, 11, 20, 16, 19),
    "n": (5, 4, 13, 18, 14, 10, 19, 15, 7, 9, 3, 2, 8, 16, 20, 1, 12, 11, 6, 17),
    "o": (9, 12, 13, 18, 7, 1, 15, 17, 10, 8, 4, 5, 20, 16, 6, 14, 19, 11, 2, 3),
    "p": (9, 12, 13, 18, 2, 11, 15, 17, 10, 8, 4, 5, 20, 16, 6, 14, 19, 1, 7, 3),
    "q": (3, 14, 13, 18, 2, 11, 15, 17, 10, 8, 4, 5, 20, 16, 6, 12, 19, 1, 7, 9),
    "r": (3, 14, 13, 1, 2, 11, 15, 17, 7, 8, 4, 5, 9, 16, 19, 12, 6, 18, 10, 20),
    "s": (3, 14, 6, 1, 2, 11, 12, 17, 7, 20, 4, 5, 9, 16, 19, 15, 13, 18, 10, 8),
    "t": (3, 15, 13, 1, 2, 11, 18, 17, 7, 20, 8, 5, 9, 16, 19, 14, 6, 12, 10, 4),
    "u": (3, 15, 13, 14, 6, 11, 18, 17, 7, 20, 8, 4, 9, 16, 10, 1, 2, 12, 19, 5),
    "v": (1, 2, 12, 14, 6, 19, 18, 17, 5, 20, 8, 4, 9, 16, 10, 3, 15, 13, 11, 7),
    "w": (1, 2, 12, 14, 13, 19, 18, 7, 11, 20, 8, 4, 9, 16, 10, 3, 15, 6, 5, 17),
}  # fmt: skip
ORDERS = {"plop-a": tuple(range(len(CLASSES)))} | {f"plop-{name}": (0, *ids) for name, ids in PLOP_ORDERS.items()}
LAYOUT = "JPEGImages/, SegmentationClassAug/ and ImageSets/Segmentation/{train_aug,val}.txt (or a VOC2012/ with these)"
TRAIN_LISTS = ("train_aug.txt", "trainaug.txt")  # both spellings are in use


@dataset(
    "voc",
    "Pascal VOC 2012 with augmented masks, 20 classes; orders of learning plop-a to plop-w by --data.class-order",
    tasks=("19-1", "15-5", "15-1", "10-10", "10-5", "10-1", "5-3", "4-4", "2-2", "2-1", "offline"),
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
    return Source("voc", CLASSES, _files(root, train_list), _files(root, lists / "val.txt"), orders=ORDERS)


def _files(root: Path, list_file: Path) -> FileSplit:
    """Lines are names, or ``/JPEGImages/X.jpg /SegmentationClassAug/X.png`` pairs as some copies of the list have."""
    names = [Path(line.split()[0]).stem for line in read_lines(list_file)]
    images = [root / "JPEGImages" / f"{name}.jpg" for name in names]
    masks = [root / "SegmentationClassAug" / f"{name}.png" for name in names]
    return FileSplit(names, images, masks)
