"""COCO JSON: polygons, compressed and uncompressed run lengths; crowds are ignored.

Of two annotations that overlap, the smaller lies on top; crowds lie below all others.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
from incseg.datasets.formats.extras import require
from incseg.datasets.formats.image_files import ImageFiles, files_below
from incseg.datasets.formats.json_files import field_of, head_of, read_json
from incseg.errors import InputError
from incseg.protocol import IGNORE

KEYS = {"images", "annotations", "categories"}
DEPTH = 3  # folders below the root in which annotation files are looked for


def find_coco(root: Path) -> list[Path]:
    """JSON files with images, annotations and categories; of the official archive only instances_*.json."""
    jsons = [path for path in files_below(root) if path.suffix == ".json"]
    jsons = [path for path in jsons if len(path.relative_to(root).parts) <= DEPTH and '"shapes"' not in head_of(path)]
    found = [path for path in jsons if _is_coco(path)]
    return [path for path in found if path.name.startswith("instances_")] or found


def _is_coco(path: Path) -> bool:
    """By its keys; a broken file counts if its beginning looks right, so that the break is named."""
    try:
        content = read_json(path)
    except InputError:
        return any(f'"{key}"' in head_of(path) for key in KEYS)
    if not isinstance(content, dict) or not content.keys() >= KEYS:
        return False
    annotations = content["annotations"]
    return not (isinstance(annotations, list) and annotations and "segments_info" in annotations[0])


def read_coco(root: Path, files: Sequence[Path]) -> Annotated:
    """One dataset of all files; a class that several of them name is one class."""
    require("pycocotools", "coco", "COCO JSON")
    contents = {path: read_json(path) for path in files}
    for path, content in contents.items():
        for key in KEYS:
            if not isinstance(field_of(content, key, path), list):
                raise InputError(f"'{key}' of {path} is not a list.")
    skipped = Skipped()
    categories = {path: _categories(content, path, skipped) for path, content in contents.items()}
    used = dict.fromkeys(name for names in categories.values() for name in names.values())
    classes, images = Classes.of(used, files[0]), ImageFiles(root)
    examples = []
    for path, content in contents.items():
        ids = {number: classes.ids[name] for number, name in categories[path].items()}
        examples += _examples(path, content, ids, images, skipped)
    _refuse_boxes_only(contents, skipped)
    return Annotated(", ".join(str(path.relative_to(root)) for path in files), classes, examples, skipped)


def _categories(content: Any, path: Path, skipped: Skipped) -> dict[int, str]:
    """Name by id; without an unused group that other categories name as their parent, as some exporters write."""
    names: dict[int, str] = {}
    for category in sorted(content["categories"], key=lambda entry: str(field_of(entry, "id", path)).zfill(9)):
        number, name = category["id"], one_line(field_of(category, "name", f"a category of {path}"))
        if number in names or name in names.values():
            raise InputError(f"{path} has two categories with the id {number} or the name '{name}'.")
        names[number] = name
    used = {field_of(entry, "category_id", f"an annotation of {path}") for entry in content["annotations"]}
    parents = {
        entry.get("supercategory") for entry in content["categories"] if entry["name"] != entry.get("supercategory")
    }
    for number in [number for number, name in names.items() if name in parents and number not in used]:
        skipped.add("categories that only group others", names.pop(number))
    unknown = sorted(used - names.keys(), key=str)
    if unknown:
        known = ", ".join(f"{number} '{name}'" for number, name in names.items())
        raise InputError(f"{path} has annotations of the category {unknown[0]}, but its categories are {known}.")
    return names


def _examples(path: Path, content: Any, ids: dict[int, int], images: ImageFiles, skipped: Skipped) -> list[Example]:
    regions: dict[Any, list[Region]] = defaultdict(list)
    for number, annotation in enumerate(content["annotations"]):
        where = f"annotation {annotation.get('id', number)} of {path}"
        rings = _outline(annotation.get("segmentation"), where, skipped)
        if rings:
            label = IGNORE if annotation.get("iscrowd") else ids[annotation["category_id"]]
            image = field_of(annotation, "image_id", where)
            regions[image].append(Region(label, bool(annotation.get("iscrowd")), rings, where))
        elif annotation.get("image_id") is None:
            raise InputError(f"{where} has no 'image_id'.")
    examples, part, seen = [], part_named(path.stem, path.parent.name), set()
    for entry in content["images"]:
        number, name = (field_of(entry, key, f"an image of {path}") for key in ("id", "file_name"))
        if number in seen:
            raise InputError(f"{path} has two images with the id {number}.")
        seen.add(number)
        stated = (entry["width"], entry["height"]) if entry.get("width") and entry.get("height") else None
        paint = partial(_paint, tuple(regions.pop(number, ())), stated, f"'{name}' of {path}")
        examples.append(Example(name, images.required(name, path.parent, path), paint, part))
    if regions:
        raise InputError(f"{path} has annotations of the image id {next(iter(regions))}, which its images do not have.")
    return examples


def _outline(segmentation: Any, where: str, skipped: Skipped) -> Any:
    """Polygons of three points or more, or run lengths; None if nothing is left."""
    if not segmentation:
        skipped.add("annotations without an outline", where)
        return None
    if isinstance(segmentation, dict):
        return segmentation
    if not isinstance(segmentation, list) or not all(isinstance(ring, list) for ring in segmentation):
        raise InputError(f"the segmentation of {where} is neither a list of polygons nor run lengths.")
    rings = [ring for ring in segmentation if len(ring) >= 6]
    for _ in range(len(segmentation) - len(rings)):
        skipped.add("polygons with fewer than 3 points", where)
    if any(len(ring) % 2 or not all(isinstance(value, int | float) for value in ring) for ring in rings):
        raise InputError(f"a polygon of {where} is not a list of pairs of numbers.")
    return rings or None


def _refuse_boxes_only(contents: dict[Path, Any], skipped: Skipped) -> None:
    annotations = sum(len(content["annotations"]) for content in contents.values())
    if annotations and skipped.counts["annotations without an outline"] == annotations:
        raise InputError(
            f"{next(iter(contents))} has boxes only, no outlines: 'segmentation' is empty in all {annotations} "
            "annotations. Boxes do not say which pixels belong to a class; export segmentation."
        )


@dataclass(frozen=True)
class Region:
    """The outline of an annotation as COCO writes it."""

    label: int
    is_crowd: bool
    outline: Any
    where: str

    def run_lengths(self, size: Size) -> Any:
        """As pycocotools encodes them, for an image of this size."""
        from pycocotools import mask  # noqa: PLC0415 - an extra

        width, height = size
        if not isinstance(self.outline, dict):
            return mask.merge(mask.frPyObjects(self.outline, height, width))
        stated, counts = (field_of(self.outline, key, self.where) for key in ("size", "counts"))
        if list(stated) != [height, width]:
            raise InputError(
                f"the run lengths of {self.where} are for {stated[1]}×{stated[0]}, but the image is {width}×{height}."
            )
        runs = counts if isinstance(counts, list) else decompressed(str(counts))
        if sum(runs) != width * height or min(runs, default=0) < 0:
            raise InputError(
                f"the run lengths of {self.where} add up to {sum(runs)}, not to the {width}×{height} of the image."
            )
        return mask.frPyObjects({"size": [height, width], "counts": runs}, height, width)


def decompressed(text: str) -> list[int]:
    """The run lengths that COCO writes as text, so that they can be checked; pycocotools trusts them.

    Each number takes one or more characters of 5 bits, lowest first; a sixth bit says that more follow, and the highest
    of the last character is the sign. From the fourth number on it is the difference to the number two before.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if not bits & 0x20:
            value -= (1 << shift) if bits & 0x10 else 0
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return runs


def _paint(regions: tuple[Region, ...], stated: Size | None, where: str, size: Size, blank: int) -> Ids:
    from pycocotools import mask  # noqa: PLC0415 - an extra

    if stated is not None:
        require_size(size, stated, where)
    ids = np.full((size[1], size[0]), blank, np.uint8)
    encoded = [region.run_lengths(size) for region in regions]
    areas = [int(mask.area(each)) for each in encoded]
    for index in sorted(range(len(regions)), key=lambda index: (not regions[index].is_crowd, -areas[index])):
        ids[mask.decode(encoded[index]).astype(bool)] = regions[index].label
    return ids
