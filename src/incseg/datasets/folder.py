"""Your own data: a folder with ``images/``, ``masks/`` and ``classes.txt``."""

from pathlib import Path

from incseg.config import DataConfig
from incseg.datasets.file_split import FileSplit
from incseg.datasets.formats import open_foreign
from incseg.datasets.held_out import hold_out
from incseg.datasets.listed import names_listed
from incseg.datasets.source import Source, dataset, existing_root, read_lines
from incseg.errors import InputError
from incseg.images import IMAGE_SUFFIXES

LAYOUT = "images/, masks/ (index PNG of the same names), classes.txt (one name per line, background first)"


@dataset(
    "folder",
    f"your own images: {LAYOUT}; optional train.txt and val.txt list the names of each split; or an export in COCO, "
    "YOLO, LabelMe, CVAT, colour masks or Hugging Face format",
    takes_settings=True,
)
def open_folder(root: Path | None, data: DataConfig) -> Source:
    """Read the lists; without ``train.txt`` and ``val.txt`` a share of the images is kept for validation."""
    root = existing_root(root, "folder", LAYOUT)
    foreign = open_foreign(root, data)
    if foreign is not None:
        return foreign
    classes = _class_names(root / "classes.txt")
    names: dict[str, Path] = {}
    for path in _images(root / "images"):
        if path.stem in names:
            raise InputError(f"{names[path.stem].name} and {path.name} in {root / 'images'} would share one mask.")
        names[path.stem] = path
    if not (root / "train.txt").exists() and not (root / "val.txt").exists():
        kept, held_out = hold_out(_files(root, names, sorted(names)), classes, data.validation_share)
        return Source(root.resolve().name, classes, kept, held_out)
    train, val = _split_names(root, sorted(names))
    both = sorted(set(train) & set(val))
    if both:
        raise InputError(f"'{both[0]}' is in both train.txt and val.txt of {root}: use it for one of them.")
    return Source(root.resolve().name, classes, _files(root, names, train), _files(root, names, val))


def _class_names(path: Path) -> tuple[str, ...]:
    names = tuple(read_lines(path))
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(f"{path} names '{doubled[0]}' twice: every class needs a name of its own.")
    if len(names) < 2:
        raise InputError(f"{path} must name the background and at least one class, one per line; it has {len(names)}.")
    return names


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is missing: a data folder must hold {LAYOUT}.")
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise InputError(f"{folder} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    return found


def _split_names(root: Path, names: list[str]) -> tuple[list[str], list[str]]:
    train_list, val_list = root / "train.txt", root / "val.txt"
    val = names_listed(val_list, names) if val_list.exists() else None
    train = names_listed(train_list, names) if train_list.exists() else None
    if val is None:
        val = _without(names, train or [])
    return _without(names, val) if train is None else train, val


def _without(names: list[str], others: list[str]) -> list[str]:
    excluded = set(others)
    return [name for name in names if name not in excluded]


def _files(root: Path, images: dict[str, Path], names: list[str]) -> FileSplit:
    for name in names:
        if name not in images:
            raise InputError(f"'{name}' is listed in {root}/train.txt or val.txt, but images/ has no such image.")
    masks = [root / "masks" / f"{name}.png" for name in names]
    return FileSplit(names, [images[name] for name in names], masks)
