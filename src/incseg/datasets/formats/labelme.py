"""LabelMe: a JSON file per image with polygons, rectangles, circles and masks. A later shape lies on top."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from incseg.datasets.formats.annotated import (
    Annotated,
    Classes,
    Example,
    Ids,
    Size,
    Skipped,
    one_line,
    part_named,
    require_size,
)
from incseg.datasets.formats.image_files import ImageFiles, files_below
from incseg.datasets.formats.json_files import field_of, head_of, read_json
from incseg.datasets.formats.painting import Bitmap, Polygon, Shape, painted
from incseg.datasets.source import read_lines
from incseg.errors import InputError

CLASS_LIST = "labels.txt"  # optional, as for LabelMe's own --labels


def find_labelme(root: Path) -> list[Path]:
    """JSON files that begin with shapes."""
    jsons = (path for path in files_below(root) if path.suffix == ".json")
    return [
        path for path in jsons if '"shapes"' in (head := head_of(path)) and '"type": "FeatureCollection"' not in head
    ]


def read_labelme(root: Path, files: Sequence[Path]) -> Annotated:
    """Classes in the order of labels.txt, or sorted by name."""
    contents = {path: read_json(path) for path in files}
    listed = root / CLASS_LIST
    labels = {
        one_line(field_of(shape, "label", f"a shape of {path}"))
        for path, content in contents.items()
        for shape in field_of(content, "shapes", path)
    }
    names = read_lines(listed) if listed.is_file() else sorted(labels)
    strange = sorted(labels - set(map(one_line, names)))
    if strange:
        raise InputError(f"{listed} does not name '{strange[0]}', which is drawn in {root}.")
    classes, images, skipped = Classes.of(names, listed if listed.is_file() else root), ImageFiles(root), Skipped()
    examples = [_example(path, content, classes, images, skipped) for path, content in contents.items()]
    annotated = {example.image for example in examples}
    for path in images.all:
        if path not in annotated:
            skipped.add("images without a LabelMe file", path.relative_to(root))
    return Annotated(f"{len(files)} JSON files", classes, examples, skipped)


def _example(path: Path, content: Any, classes: Classes, images: ImageFiles, skipped: Skipped) -> Example:
    shapes = [
        _shape(shape, classes, f"{path}, shape {n}", skipped) for n, shape in enumerate(content["shapes"], start=1)
    ]
    stated = (content.get("imageWidth"), content.get("imageHeight"))
    kept = tuple(shape for shape in shapes if shape is not None)
    written = str(field_of(content, "imagePath", path))
    name = PureWindowsPath(written).name  # which also splits at /
    paint = partial(_paint, kept, stated if all(stated) else None, str(path))
    return Example(
        name, _image(path, written, content, images), paint, part_named(*path.relative_to(images.root).parts[:-1])
    )


def _image(path: Path, written: str, content: Any, images: ImageFiles) -> Path | Callable[[], bytes]:
    """The file, or where there is none the image inside the JSON file."""
    found = images.find(written, path.parent)
    if found is not None:
        return found
    if not content.get("imageData"):
        return images.required(written, path.parent, path)
    return partial(_decoded, content["imageData"], str(path))


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InputError(f"the image inside {where} is not valid base64; is the file complete?") from None


def _shape(shape: Any, classes: Classes, where: str, skipped: Skipped) -> Shape | None:
    """What can be painted; None, counted, for what has no area."""
    label, kind = classes.ids[one_line(shape["label"])], shape.get("shape_type") or "polygon"
    try:
        points = [(float(x), float(y)) for x, y in field_of(shape, "points", where)]
    except (TypeError, ValueError):
        raise InputError(f"the points of {where} are not pairs of numbers.") from None
    if kind == "polygon" and len(points) >= 3:
        return Polygon(label, points)
    if kind == "rectangle" and len(points) == 2:
        return Polygon.rectangle(label, points[0], points[1])
    if kind == "rectangle" and len(points) == 4:
        return Polygon(label, points)
    if kind == "circle" and len(points) == 2:
        radius = math.dist(*points)
        return Polygon.ellipse(label, points[0], (radius, radius))
    if kind == "mask" and len(points) == 2:
        return Bitmap(label, int(points[0][0]), int(points[0][1]), _bitmap(field_of(shape, "mask", where), where))
    skipped.add("polygons with fewer than 3 points" if kind == "polygon" else f"shapes of the kind '{kind}'", where)
    return None


def _bitmap(text: str, where: str) -> Any:
    try:
        with Image.open(io.BytesIO(_decoded(text, where))) as picture:
            return np.array(picture).astype(bool)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
        raise InputError(f"the mask of {where} is not a PNG.") from None


def _paint(shapes: tuple[Shape, ...], stated: Size | None, where: str, size: Size, blank: int) -> Ids:
    if stated is not None:
        require_size(size, stated, where)
    return painted(shapes, size, blank)
