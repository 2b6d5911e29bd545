"""Files that say which colour or number of a mask is which class."""

import csv
import re
from pathlib import Path
from typing import Any

from PIL import ImageColor

from incseg.datasets.formats.annotated import Classes, one_line
from incseg.datasets.formats.decoding import ByColour, ByValue, Colour
from incseg.datasets.formats.json_files import read_json
from incseg.datasets.source import read_lines
from incseg.errors import InputError

Decoder = ByColour | ByValue
NAMES = re.compile(
    r"_?(label_?map|class_dict(_seg)?|classes|label_colou?rs|colou?rs|palette|colou?r_?map)\.(txt|csv|json)"
)


def find_label_map(root: Path) -> Path | None:
    """In the folder itself or one below it; classes.txt is none: it is a list of names without colours."""
    places = [*sorted(root.glob("*.*")), *sorted(root.glob("*/*.*"))]
    return next(
        (path for path in places if NAMES.fullmatch(path.name.lower()) and path.name != "classes.txt" and _rows(path)),
        None,
    )


def read_label_map(path: Path) -> tuple[Classes, Decoder]:
    """Classes in the order of the file, and how to read the masks."""
    rows = _rows(path)
    classes = Classes.of((name for name, _ in rows), path)
    colours: dict[Colour, int] = {}
    values: dict[int, int] = {}
    for name, written in rows:
        known = values if isinstance(written, int) else colours
        if written in known:
            raise InputError(f"{path} gives '{name}' and another class the same colour or number, {written}.")
        known[written] = classes.ids[name]  # type: ignore[index]
    return classes, ByColour(colours, path) if colours else ByValue(values, path)


def _rows(path: Path) -> list[tuple[str, Colour | int]]:
    """Name, and colour or number, of each class."""
    if path.suffix.lower() == ".json":
        return _from_json(read_json(path))
    lines = [line for line in read_lines(path) if not line.startswith("#")]
    if path.suffix.lower() == ".csv":
        return _from_table(list(csv.reader(lines, skipinitialspace=True)))
    return [row for line in lines if (row := _from_line(line)) is not None]


def _from_line(line: str) -> tuple[str, Colour] | None:
    """``name:r,g,b:parts:actions`` as CVAT and Datumaro write it, or ``r g b name`` as CamVid does."""
    one = re.match(r"(.+?):\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*(:|$)", line)
    if one:
        return one_line(one[1]), (int(one[2]), int(one[3]), int(one[4]))
    other = re.match(r"(\d+)\s+(\d+)\s+(\d+)\s+(.+)", line)
    return (one_line(other[4]), (int(other[1]), int(other[2]), int(other[3]))) if other else None


def _from_table(rows: list[list[str]]) -> list[tuple[str, Colour | int]]:
    """``name,r,g,b``, with or without a header; or ``Pixel Value, Class`` as Roboflow writes it."""
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    if header[:2] == ["pixel value", "class"]:
        return [(one_line(row[1]), int(row[0])) for row in rows[1:] if len(row) >= 2 and row[0].strip().isdigit()]
    cells = [row for row in rows if len(row) >= 4 and all(cell.strip().isdigit() for cell in row[1:4])]
    return [(one_line(row[0]), (int(row[1]), int(row[2]), int(row[3]))) for row in cells]


def _from_json(content: Any) -> list[tuple[str, Colour | int]]:
    """``{name: [r, g, b]}``, ``{name: "#rrggbb"}``, or a list of objects with ``name`` and ``color``."""
    if isinstance(content, list):
        pairs = [
            (entry.get("name"), next((entry[key] for key in ("color", "colour", "rgb") if key in entry), None))
            for entry in content
            if isinstance(entry, dict)
        ]
    else:
        pairs = list(content.items()) if isinstance(content, dict) else []
    found = [(one_line(name), _colour(written)) for name, written in pairs]
    return [(name, colour) for name, colour in found if colour is not None]


def _colour(written: Any) -> Colour | None:
    if isinstance(written, str) and written.startswith("#"):
        red, green, blue, *_ = ImageColor.getrgb(written)
        return red, green, blue
    if isinstance(written, list) and len(written) >= 3 and all(isinstance(value, int) for value in written[:3]):
        return written[0], written[1], written[2]
    return None
