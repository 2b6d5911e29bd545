"""Ultralytics' layouts: a data.yaml with outlines in labels/*.txt (YOLO-seg), or with a folder of masks (masks_dir).

Of two outlines that overlap, the smaller lies on top, as in Ultralytics' own masks.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from incseg.datasets.formats.annotated import PARTS, Annotated, Classes, Example, Ids, Part, Size, Skipped, one_line
from incseg.datasets.formats.decoding import ByValue
from incseg.datasets.formats.image_files import ImageFiles, files_below, is_image
from incseg.datasets.formats.painting import Polygon, painted
from incseg.datasets.source import read_lines
from incseg.errors import InputError
from incseg.files import read_text

MASK_SUFFIXES = (".png", ".PNG", ".bmp", ".tif")
BOXES = "boxes without an outline"
Outline = tuple[int, list[float]]  # class of the file, x and y in turns as shares of the image


def find_yolo(root: Path) -> list[Path]:
    """A YAML file with names and splits; or classes.txt beside labels/*.txt, as Label Studio writes them."""
    described = [path for path in sorted(root.iterdir()) if path.suffix in (".yaml", ".yml") and _is_described(path)]
    if described:
        return described[:1]
    has_labels = (root / "classes.txt").is_file() and (root / "images").is_dir()
    return [root / "classes.txt"] if has_labels and any((root / "labels").rglob("*.txt")) else []


def _is_described(path: Path) -> bool:
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, InputError):
        return path.stem in ("data", "dataset")
    return isinstance(content, dict) and "names" in content


def read_yolo(root: Path, files: Sequence[Path]) -> Annotated:
    """Every image of the splits; one without a label file shows background only, as Ultralytics reads it."""
    (described,) = files
    content = _description(described)
    names = _names(content, described)
    classes, images, skipped = Classes.of(names.values(), described), ImageFiles(root), Skipped()
    ids = {number: classes.ids[one_line(name)] for number, name in names.items()}
    masks = content.get("masks_dir")
    examples, has_outlines = [], False
    for part, image in _listed(content, described, images):
        if masks is not None:
            paint = partial(ByValue(ids, described).paint, _mask_of(image, str(masks)))
        else:
            outlines = _outlines(_labels_of(image), ids, skipped)
            has_outlines = has_outlines or bool(outlines)
            paint = partial(_paint, outlines)
        name = str(image.relative_to(root)) if image.is_relative_to(root) else image.name
        examples.append(Example(name, image, paint, part))
    if masks is None and not has_outlines:
        _refuse_no_outlines(described, skipped)
    return Annotated(described.name, classes, examples, skipped)


def _refuse_no_outlines(described: Path, skipped: Skipped) -> None:
    if skipped.counts[BOXES]:
        raise InputError(
            f"{described} is a YOLO detection dataset: its label files hold boxes, not outlines. Boxes do not say "
            "which pixels belong to a class; export it for segmentation."
        )
    raise InputError(f"no image of {described} has a label file with an outline: there should be labels/NAME.txt.")


def _description(path: Path) -> dict[str, Any]:
    if path.suffix == ".txt":
        return {"names": read_lines(path), "train": "images"} | {"unsplit": True}
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML ({' '.join(str(error).split())}).") from None
    if not isinstance(content, dict) or not any(content.get(key) for key in PARTS):
        raise InputError(f"{path} must name the images of its splits, 'train' and 'val'.")
    return content


def _names(content: dict[str, Any], path: Path) -> dict[int, str]:
    """Class names by number, which may be written as a list or as a mapping."""
    names = content.get("names")
    pairs = names.items() if isinstance(names, dict) else enumerate(names) if isinstance(names, list) else ()
    try:
        found = {int(number): str(name) for number, name in pairs}
    except ValueError:
        found = {}
    if not found:
        raise InputError(f"'names' of {path} must be a list of class names, or a mapping from numbers to names.")
    return dict(sorted(found.items()))


def _listed(content: dict[str, Any], described: Path, images: ImageFiles) -> Iterator[tuple[Part | None, Path]]:
    """The images of each split, in order; a split may be a folder, a text file, or a list of these."""
    seen: set[Path] = set()
    for key, part in PARTS.items():
        given = content.get(key) or []
        for place in given if isinstance(given, list) else [given]:
            for image in _images_at(_place(str(place), content, described), described, images):
                if image not in seen:
                    seen.add(image)
                    yield None if content.get("unsplit") else part, image


def _place(written: str, content: dict[str, Any], described: Path) -> Path:
    """Where a split is: below 'path', or beside the YAML file if that was written on another machine."""
    base = described.parent
    named = str(content.get("path") or ".")
    inside = PurePosixPath(written.replace("\\", "/"))
    shortened = PurePosixPath(*[piece for piece in inside.parts if piece not in ("..", ".")])
    candidates = [Path(named) / inside, base / named / inside, base / inside, base / shortened]
    candidates += [base.joinpath(*shortened.parts[index:]) for index in range(1, len(shortened.parts))]
    if not inside.is_absolute() and not Path(named).is_absolute():
        candidates.pop(0)  # what is relative is so to the YAML file, not to where the command is run
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise InputError(f"{described} names the images '{written}' (path: {named}), which are not below {base}.")


def _images_at(place: Path, described: Path, images: ImageFiles) -> Iterable[Path]:
    if place.is_dir():
        return [path for path in files_below(place) if is_image(path)]
    return [images.required(line, described.parent, place) for line in read_lines(place)]


def _mask_of(image: Path, folder: str) -> Path:
    """As Ultralytics finds it: the last ``images`` of the path replaced, and any of a few suffixes."""
    stem = _beside(image, folder).with_suffix("")
    found = [path for suffix in MASK_SUFFIXES if (path := stem.with_name(stem.name + suffix)).is_file()]
    if not found:
        raise InputError(f"the image {image} has no mask {stem}.png.")
    return found[0]


def _labels_of(image: Path) -> Path:
    return _beside(image, "labels").with_suffix(".txt")


def _beside(image: Path, folder: str) -> Path:
    """The path with its last folder ``images`` replaced."""
    parts = list(image.parts)
    last = next((index for index in range(len(parts) - 2, -1, -1) if parts[index] == "images"), None)
    if last is not None:
        parts[last] = folder
    return Path(*parts)


def _outlines(path: Path, ids: dict[int, int], skipped: Skipped) -> tuple[Outline, ...]:
    """What can be painted of one label file."""
    outlines = []
    for number, line in enumerate(read_lines(path) if path.is_file() else (), start=1):
        where = f"{path}, line {number}"
        try:
            label, *values = (float(word) for word in line.split())
        except ValueError:
            raise InputError(f"{where} must be a class number and coordinates, not '{line[:60]}'.") from None
        if int(label) not in ids:
            raise InputError(f"{where} has the class {label:.0f}, but names has {min(ids)} to {max(ids)}.")
        if len(values) == 4:
            skipped.add(BOXES, where)
        elif len(values) < 6:
            skipped.add("polygons with fewer than 3 points", where)
        elif len(values) % 2 or not all(-0.01 <= value <= 1.01 for value in values):
            raise InputError(f"{where} must have x and y in turns, each as a share of the image from 0 to 1.")
        else:
            outlines.append((ids[int(label)], values))
    return tuple(outlines)


def _paint(outlines: tuple[Outline, ...], size: Size, blank: int) -> Ids:
    width, height = size
    polygons = [
        Polygon(label, [(x * width, y * height) for x, y in zip(values[::2], values[1::2], strict=True)])
        for label, values in outlines
    ]
    polygons.sort(key=Polygon.area, reverse=True)
    return painted(polygons, size, blank)
