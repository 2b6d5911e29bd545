"""Images with a mask file each: VOC's folders, CamVid's, Cityscapes' suffixes, ``x.jpg`` beside ``x_mask.png``.

A label map says which colour or number is which class; without one, classes.txt numbers the classes by line.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from incseg.colours import palette
from incseg.datasets import cityscapes, voc
from incseg.datasets.formats.annotated import Annotated, Classes, Example, Part, Skipped, one_line, part_named
from incseg.datasets.formats.decoding import ByColour, ByValue
from incseg.datasets.formats.image_files import ImageFiles
from incseg.datasets.formats.label_maps import Decoder, find_label_map, read_label_map
from incseg.datasets.source import read_lines
from incseg.errors import InputError

MASK_FOLDER = re.compile(
    r"(segmentation_?class\w*|masks?|labels?|annotations?|gt|gt_?fine|ground_?truth|segmentations?|\w*[_-](masks?|labels?|annot|gt))",
    re.IGNORECASE,
)
MASK_ENDING = re.compile(
    r"(_gtFine_labelIds|_labelIds|[_-](mask|masks|label|labels|gt|seg|segmentation|L))$", re.IGNORECASE
)
IMAGE_ENDING = re.compile(r"(_leftImg8bit|[_-](image|img|rgb))$", re.IGNORECASE)
OTHER = re.compile(r"(SegmentationObject|.*_(instanceIds|gtFine_color|instanceTrainIds|labelTrainIds))", re.IGNORECASE)
LISTS = Path("ImageSets", "Segmentation")


def find_masks(root: Path) -> list[Path]:
    """The label map, or without one what names the classes: classes.txt, VOC's folder, Cityscapes' suffix."""
    masks = [path for path in ImageFiles(root).all if _is_mask(path, root)]
    if not masks:
        return []
    label_map = find_label_map(root)
    if label_map is not None:
        return [label_map]
    if (root / "classes.txt").is_file():
        return [root / "classes.txt"]
    return masks[:1] if _known_masks(masks[0]) else []


def read_masks(root: Path, files: Sequence[Path]) -> Annotated:
    """Pairs of the same name, folder and suffix aside; of the same name in several splits, those of one split."""
    images, skipped = ImageFiles(root), Skipped()
    masks = {path: _key(path, root, MASK_ENDING) for path in images.all if _is_mask(path, root)}
    classes, decoder = _classes(files[0])
    by_key: dict[tuple[Part | None, str], list[Path]] = defaultdict(list)
    for path, (part, name) in masks.items():
        for key in {(part, name), (None, name)}:
            by_key[key].append(path)
    listed = _listed_parts(root)
    examples, used = [], set()
    for path in images.all:
        if path in masks or any(OTHER.fullmatch(name) for name in (path.stem, *path.relative_to(root).parts)):
            continue
        part, name = _key(path, root, IMAGE_ENDING)
        found = by_key.get((part, name)) or by_key.get((None, name)) or []
        if len(found) > 1:
            raise InputError(
                f"the image {path} may belong to {found[0]} or to {found[1]}: keep one mask for each image."
            )
        if not found:
            skipped.add("images without a mask", path.relative_to(root))
            continue
        used.add(found[0])
        examples.append(
            Example(str(path.relative_to(root)), path, partial(decoder.paint, found[0]), listed.get(name, part))
        )
    for path in masks.keys() - used:
        skipped.add("masks without an image", path.relative_to(root))
    if not examples:
        raise InputError(
            f"{root} has {len(masks)} masks, but no image of the same names: put the images beside them (CVAT: export "
            "with 'Save images')."
        )
    return Annotated(files[0].name if files[0] not in masks else f"{len(used)} masks", classes, examples, skipped)


def _is_mask(path: Path, root: Path) -> bool:
    folders = path.relative_to(root).parts[:-1]
    if OTHER.fullmatch(path.stem) or any(OTHER.fullmatch(folder) for folder in folders):
        return False
    return bool(MASK_ENDING.search(path.stem)) or any(MASK_FOLDER.fullmatch(folder) for folder in folders)


def _key(path: Path, root: Path, ending: re.Pattern[str]) -> tuple[Part | None, str]:
    return part_named(*path.relative_to(root).parts[:-1]), ending.sub("", path.stem)


def _known_masks(mask: Path) -> bool:
    return mask.parent.name.lower().startswith("segmentationclass") or mask.stem.endswith("_gtFine_labelIds")


def _classes(described: Path) -> tuple[Classes, Decoder]:
    """What the masks mean, by a label map, a list of names, or as VOC and Cityscapes are known to."""
    if described.name == "classes.txt":
        names = read_lines(described)
        classes = Classes.of(names, described)
        return classes, ByValue({number: classes.ids[one_line(name)] for number, name in enumerate(names)}, described)
    if described.stem.endswith("_gtFine_labelIds"):
        table = cityscapes.id_table().tolist()
        return Classes.of(cityscapes.CLASSES, described), ByValue(
            dict(enumerate(table[: cityscapes.LAST_LABEL_ID + 1])), described
        )
    if described.parent.name.lower().startswith("segmentationclass"):
        colours = [(int(red), int(green), int(blue)) for red, green, blue in palette("voc")[: len(voc.CLASSES)]]
        ids = {colour: id_ for id_, colour in enumerate(colours)}
        return Classes.of(voc.CLASSES, described), ByColour(ids, Path("the list of VOC's colours"))
    return read_label_map(described)


def _listed_parts(root: Path) -> dict[str, Part]:
    """Splits by lists of names, as VOC has them."""
    parts: dict[str, Part] = {}
    for folder in (root / LISTS, root):
        for part in ("train", "val"):
            path = folder / f"{part}.txt"
            if path.is_file():
                parts |= {Path(line.split()[0]).stem: part for line in read_lines(path)}
    return parts
