"""From a foreign format to images with index masks: into a folder of our own layout, or into the user's cache.

Both paint every mask once. Training then reads PNG files like any other dataset: the scan of classes, the checks, the
resuming of runs and worker processes need not know of formats, and an epoch costs no painting. Images are not copied
into the cache, except those that lie inside other files.
"""

import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import platformdirs
from PIL import Image, UnidentifiedImageError

from incseg.config import DataConfig
from incseg.console import Console, is_rank_zero, progress_of
from incseg.datasets.file_split import FileSplit
from incseg.datasets.formats.annotated import Annotated, Example
from incseg.datasets.formats.detection import Format, detect, is_native, refuse_unsupported
from incseg.datasets.formats.image_files import files_below
from incseg.datasets.held_out import choose_validation
from incseg.datasets.scan import in_threads
from incseg.datasets.source import GIVEN, Source, Validation
from incseg.errors import InputError
from incseg.files import replacing, usable_folder
from incseg.images import image_shape, index_image
from incseg.protocol import BACKGROUND, IGNORE

CACHE_FORMAT = 2  # raise it whenever the same files would be painted otherwise, or the index holds something else
INDEX = "index.json"
SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "BMP": ".bmp", "TIFF": ".tif", "WEBP": ".webp"}
PATIENCE = 2.0  # seconds before a log hears of the progress


def is_painted(file: Path) -> bool:
    """Whether a mask was painted by us from annotations: nobody has seen it."""
    return file.is_relative_to(_painted())


def _painted() -> Path:
    return Path(platformdirs.user_cache_dir("incseg")) / "converted"


def open_foreign(root: Path, data: DataConfig) -> Source | None:
    """The dataset in a folder of another layout than ours; None if it is ours, or nothing that is known.

    The masks are painted into the user's cache, in a folder named after everything that they depend on: every file
    below ``root`` with its size and time, and the settings. It appears there only when complete.
    """
    if data.format == "auto" and is_native(root):
        return None
    root = root.resolve()
    place = _painted() / _fingerprint(root, data)
    if not place.is_dir():
        found = detect(root, data.format)
        if found is None:
            refuse_unsupported(root)
            return None
        _paint_into_cache(root, *found, data, place)
    index = json.loads((place / INDEX).read_text(encoding="utf-8"))
    train, val = (
        FileSplit(
            [name for name, _ in index[part]],
            [place / image for _, image in index[part]],  # an absolute path stays what it is
            [place / "masks" / f"{name}.png" for name, _ in index[part]],
        )
        for part in ("train", "val")
    )
    notes = (*index["notes"], f"the masks painted from it are kept in {place}")
    validation = Validation(**index["validation"])
    return Source(root.name, tuple(index["classes"]), train, val, notes=notes, validation=validation)


def convert(root: Path, out: Path, data: DataConfig) -> list[str]:
    """Write a folder of our layout; returns what is to be said about it."""
    usable_folder(out)
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: choose another --out.")
    if out.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{out} is inside {root}: choose an --out elsewhere.")
    if data.format == "auto" and is_native(root):
        raise InputError(f"{root} is in incseg's own layout already: use it as it is.")
    found = detect(root, data.format)
    if found is None:
        refuse_unsupported(root)
        raise InputError(f"{root} is in no format that is known: see 'incseg data convert --help'.")
    format_, files = found
    annotated = format_.read(root, files)
    with replacing(out) as temporary:
        painted = _paint_all(annotated, temporary, data, copy_images=True)
        (temporary / "classes.txt").write_text("\n".join(annotated.classes.names) + "\n", encoding="utf-8")
        for part, chosen in (("train", painted.parts.train), ("val", painted.parts.val)):
            lines = "".join(f"{painted.names[index]}\n" for index in chosen)
            (temporary / f"{part}.txt").write_text(lines, encoding="utf-8")
    return _notes(format_, annotated, painted)


class Parts(NamedTuple):
    """The examples of each split, by index."""

    train: Sequence[int]
    val: Sequence[int]
    validation: Validation
    remark: str


@dataclass(frozen=True)
class Painted:
    """What was written: a name for each example, its image, and the examples of each split."""

    names: Sequence[str]
    images: Sequence[Path]
    parts: Parts


def _paint_into_cache(root: Path, format_: Format, files: Sequence[Path], data: DataConfig, place: Path) -> None:
    usable_folder(place.parent)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".") as temporary:
        folder, annotated = Path(temporary) / "painted", format_.read(root, files)
        painted = _paint_all(annotated, folder, data, copy_images=False)
        index = {
            "classes": annotated.classes.names,
            "notes": _notes(format_, annotated, painted),
            "train": [_entry(painted, index, folder) for index in painted.parts.train],
            "val": [_entry(painted, index, folder) for index in painted.parts.val],
            "validation": asdict(painted.parts.validation),
        }
        (folder / INDEX).write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
        try:
            folder.rename(place)
        except OSError:
            if not place.is_dir():  # another process was faster, with the same files
                raise


def _entry(painted: Painted, index: int, folder: Path) -> tuple[str, str]:
    image = painted.images[index]
    return painted.names[index], str(image.relative_to(folder) if image.is_relative_to(folder) else image.resolve())


def _paint_all(annotated: Annotated, folder: Path, data: DataConfig, *, copy_images: bool) -> Painted:
    """Write every mask, and the images that are not files of their own (or all); all problems are collected."""
    examples = annotated.examples
    _refuse_doubles(examples)
    names = distinct_names([example.name for example in examples])
    (folder / "masks").mkdir(parents=True)
    (folder / "images").mkdir()
    blank = IGNORE if data.unlabelled == "ignore" else BACKGROUND

    def paint(index: int) -> tuple[Path, frozenset[int], str]:
        try:
            image = _image_file(examples[index], folder / "images" / names[index], copy=copy_images)
            ids = examples[index].paint(image_shape(image)[::-1], blank)
        except InputError as error:
            return folder, frozenset(), str(error)
        index_image(ids).save(folder / "masks" / f"{names[index]}.png")
        return image, frozenset(np.unique(ids).tolist()) - {BACKGROUND, IGNORE}, ""

    with progress_of("painting masks", Console(stderr=True, quiet=not is_rank_zero()), patience=PATIENCE) as advance:
        results = list(in_threads(paint, len(examples), advance))
    problems = [problem for _, _, problem in results if problem]
    if problems:
        others = f" There are {len(problems) - 1} more problems of other images." if len(problems) > 1 else ""
        raise InputError(problems[0] + others)
    parts = _split(examples, [shown for _, shown, _ in results], data.validation_share)
    return Painted(names, [image for image, _, _ in results], parts)


def _image_file(example: Example, place: Path, *, copy: bool) -> Path:
    """The image's own file, or one written to ``place`` with the right suffix."""
    if isinstance(example.image, Path):
        if not copy:
            return example.image
        target = place.with_name(place.name + example.image.suffix)
        shutil.copyfile(example.image, target)
        return target
    content = example.image()
    try:
        with Image.open(io.BytesIO(content)) as picture:
            suffix = SUFFIXES.get(picture.format or "", ".png")
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise InputError(f"what is embedded as the image {example.name} is no picture.") from None
    target = place.with_name(place.name + suffix)
    target.write_bytes(content)
    return target


def distinct_names(given: Sequence[str]) -> list[str]:
    """A file name for each path, without suffix: its last part where that is enough, else with its folders."""
    paths = [PurePath(name.replace("\\", "/").lstrip("/")) for name in given]
    for spelled in (_last_part, _with_folders, _with_suffix):
        names = [spelled(path) for path in paths]
        if len({name.casefold() for name in names}) == len(names):
            return names
    doubled = next(name for name in names if names.count(name) > 1)
    raise InputError(f"two images are called '{doubled}': give them names of their own.")


def _last_part(path: PurePath) -> str:
    return path.stem


def _with_folders(path: PurePath) -> str:
    return "_".join(path.with_suffix("").parts)


def _with_suffix(path: PurePath) -> str:
    return "_".join(path.parts).replace(".", "_")


def _refuse_doubles(examples: Sequence[Example]) -> None:
    seen: set[Path] = set()
    for example in examples:
        if isinstance(example.image, Path):
            if example.image in seen:
                raise InputError(f"the image {example.image} is annotated twice.")
            seen.add(example.image)


def _split(examples: Sequence[Example], presence: Sequence[frozenset[int]], share: float) -> Parts:
    """As the format says; else a share is kept for validation. Test images only serve where there are no others."""
    by_part: dict[str | None, list[int]] = {part: [] for part in ("train", "val", "test", None)}
    for index, example in enumerate(examples):
        by_part[example.part].append(index)
    train = sorted(by_part["train"] + by_part[None])
    val, test = by_part["val"], by_part["test"]
    if train and val:
        return Parts(train, val, GIVEN, f"{len(test)} test images are left out" if test else "")
    if train and test:
        validation = Validation(words="that it keeps for testing")
        return Parts(train, test, validation, "there is no validation split: its test images are used for that")
    rest = sorted(train + val + test)
    chosen = choose_validation([presence[index] for index in rest], share)
    kept = [index for place, index in enumerate(rest) if place in chosen]
    left = [index for place, index in enumerate(rest) if place not in chosen]
    validation = Validation(given=False, words="which is not divided into training and validation")
    remark = f"{len(kept)} images are kept for validation, chosen by the classes that they show"
    return Parts(left, kept, validation, remark)


def _notes(format_: Format, annotated: Annotated, painted: Painted) -> list[str]:
    count, classes = len(annotated.examples), annotated.classes
    first = f"reading data as {format_.title}: {annotated.files}, {count} images, {len(classes.names) - 1} classes"
    ignored = [name for name, id_ in classes.ids.items() if id_ == IGNORE]
    notes = [f"pixels of the class '{name}' are ignored ({IGNORE})" for name in ignored]
    remark = painted.parts.remark
    return [first, *notes, *annotated.skipped.sentences(), *([remark] if remark else [])]


def _fingerprint(root: Path, data: DataConfig) -> str:
    """A name that changes with any file below the folder, and with the settings."""
    parts = [f"{CACHE_FORMAT} {root} {data.format} {data.unlabelled} {data.validation_share}"]
    for path in files_below(root):
        stat = path.stat()
        parts.append(f"{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode("utf-8", errors="surrogateescape")).hexdigest()[:32]
