"""CVAT for images (XML): polygons, boxes, ellipses and masks. By z_order, and of equal z_order the later on top."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

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
from incseg.datasets.formats.json_files import head_of
from incseg.datasets.formats.painting import Bitmap, Point, Polygon, Shape, painted
from incseg.errors import InputError

NOT_SHAPES = {"tag", "attribute"}


def find_cvat(root: Path) -> list[Path]:
    """XML files with an <annotations> element."""
    return [path for path in files_below(root) if path.suffix == ".xml" and "<annotations" in head_of(path)]


def read_cvat(root: Path, files: Sequence[Path]) -> Annotated:
    """Classes in the order of the label list in the files."""
    trees = {path: _parsed(path) for path in files}
    names = dict.fromkeys(
        one_line(label.findtext("name")) for tree in trees.values() for label in tree.iterfind("meta//labels/label")
    )
    classes, images, skipped = Classes.of(names, files[0]), ImageFiles(root), Skipped()
    examples = [
        _example(path, image, classes, images, skipped) for path, tree in trees.items() for image in tree.iter("image")
    ]
    if not examples:
        raise InputError(f"{files[0]} annotates no image.")
    return Annotated(", ".join(str(path.relative_to(root)) for path in files), classes, examples, skipped)


def _parsed(path: Path) -> ElementTree.Element:
    try:
        tree = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise InputError(f"{path} is not valid XML ({error}); is it complete?") from None
    if tree.find("track") is not None:
        raise InputError(
            f"{path} is 'CVAT for video', which is not supported: export as 'CVAT for images 1.1' or COCO."
        )
    return tree


def _example(path: Path, image: ElementTree.Element, classes: Classes, images: ImageFiles, skipped: Skipped) -> Example:
    name = _attribute(image, "name", str(path))
    where = f"'{name}' of {path}"
    drawn = [element for element in image if element.tag not in NOT_SHAPES]
    drawn.sort(key=lambda element: int(element.get("z_order") or 0))
    shapes = tuple(shape for shape in (_shape(each, classes, where, skipped) for each in drawn) if shape is not None)
    stated = (int(_attribute(image, "width", where)), int(_attribute(image, "height", where)))
    subset = image.get("subset") or ""
    found = images.find(f"images/{subset}/{name}", path.parent) if subset else None
    found = found or images.required(name, path.parent, path)
    return Example(name, found, partial(_paint, shapes, stated, where), part_named(subset))


def _attribute(element: ElementTree.Element, name: str, where: str) -> str:
    value = element.get(name)
    if value is None:
        raise InputError(f"a <{element.tag}> of {where} has no '{name}'.")
    return value


def _shape(element: ElementTree.Element, classes: Classes, where: str, skipped: Skipped) -> Shape | None:
    name = one_line(_attribute(element, "label", where))
    if name not in classes.ids:
        raise InputError(f"{where} has the label '{name}', which is not in the label list of the file.")
    try:
        drawn = _bitmap(element, classes.ids[name], where) if element.tag == "mask" else _outline(element, where)
    except ValueError:
        raise InputError(f"a <{element.tag}> of {where} has coordinates that are not numbers.") from None
    if isinstance(drawn, Bitmap):
        return drawn
    if drawn is None:
        skipped.add(f"shapes of the kind '{element.tag}'", where)
    elif len(drawn) < 3:
        skipped.add("polygons with fewer than 3 points", where)
    else:
        return Polygon(classes.ids[name], _turned(drawn, float(element.get("rotation") or 0)))
    return None


def _outline(element: ElementTree.Element, where: str) -> Sequence[Point] | None:
    """The corners of a shape; None if it has no area."""

    def number(name: str) -> float:
        return float(_attribute(element, name, where))

    if element.tag == "polygon":
        pairs = (pair.split(",") for pair in _attribute(element, "points", where).split(";") if pair.strip())
        return [(float(x), float(y)) for x, y in pairs]
    if element.tag == "box":
        return Polygon.rectangle(0, (number("xtl"), number("ytl")), (number("xbr"), number("ybr"))).points
    if element.tag == "ellipse":
        return Polygon.ellipse(0, (number("cx"), number("cy")), (number("rx"), number("ry"))).points
    return None


def _turned(points: Sequence[Point], degrees: float) -> Sequence[Point]:
    """Turned clockwise around the centre, as CVAT shows boxes and ellipses with a rotation."""
    if not degrees:
        return points
    corners = np.array([complex(x, y) for x, y in points])
    centre = corners.mean()
    turned = (corners - centre) * np.exp(1j * np.deg2rad(degrees)) + centre
    return [(corner.real, corner.imag) for corner in turned]


def _bitmap(element: ElementTree.Element, label: int, where: str) -> Bitmap:
    """Run lengths by rows inside a box, beginning with what is not painted."""
    left, top, width, height = (
        int(float(_attribute(element, key, where))) for key in ("left", "top", "width", "height")
    )
    counts = [int(count) for count in _attribute(element, "rle", where).split(",")]
    if sum(counts) != width * height or min(counts) < 0:
        raise InputError(f"the run lengths of a <mask> of {where} add up to {sum(counts)}, not {width}×{height}.")
    pixels = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(height, width)
    return Bitmap(label, left, top, pixels)


def _paint(shapes: tuple[Shape, ...], stated: Size, where: str, size: Size, blank: int) -> Ids:
    require_size(size, stated, where)
    return painted(shapes, size, blank)
