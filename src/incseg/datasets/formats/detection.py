"""Which format a folder is in, told by its contents; those that cannot be read are named too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from incseg.datasets.formats.annotated import Annotated
from incseg.datasets.formats.coco import find_coco, read_coco
from incseg.datasets.formats.cvat import find_cvat, read_cvat
from incseg.datasets.formats.hugging_face import find_hugging_face, read_hugging_face
from incseg.datasets.formats.image_files import files_below
from incseg.datasets.formats.json_files import head_of
from incseg.datasets.formats.label_maps import find_label_map
from incseg.datasets.formats.labelme import find_labelme, read_labelme
from incseg.datasets.formats.paired_masks import find_masks, read_masks
from incseg.datasets.formats.yolo import find_yolo, read_yolo
from incseg.errors import InputError, closest


@dataclass(frozen=True)
class Format:
    """A format: ``find(root)`` gives the files that it is told by, none if the folder is in another format."""

    name: str
    title: str
    find: Callable[[Path], list[Path]]
    read: Callable[[Path, Sequence[Path]], Annotated]


FORMATS = (  # in the order of trial: what is told by its content before what is told by the names of files
    Format("yolo", "Ultralytics YOLO", find_yolo, read_yolo),
    Format("coco", "COCO JSON", find_coco, read_coco),
    Format("labelme", "LabelMe", find_labelme, read_labelme),
    Format("cvat", "CVAT for images", find_cvat, read_cvat),
    Format("hugging-face", "a Hugging Face dataset", find_hugging_face, read_hugging_face),
    Format("masks", "images with mask files", find_masks, read_masks),
)


def format_names() -> list[str]:
    """What can be given as the name of a format."""
    return [format_.name for format_ in FORMATS]


def is_native(root: Path) -> bool:
    """Whether a folder is in our own layout, or lacks only files of it that no other format has."""
    has_folders = (root / "images").is_dir() and (root / "masks").is_dir()
    return has_folders and (root / "classes.txt").is_file() and find_label_map(root) is None


def detect(root: Path, name: str = "auto") -> tuple[Format, list[Path]] | None:
    """The format of a folder and the files it is told by; None if there is nothing that is known."""
    if name not in ("auto", *format_names()):
        raise InputError(
            f"'{name}' is not a format: choose from auto, {', '.join(format_names())}.{closest(name, format_names())}"
        )
    for format_ in FORMATS:
        if name in ("auto", format_.name):
            files = format_.find(root)
            if files:
                return format_, files
    if name != "auto":
        raise InputError(f"{root} does not look like {name}: nothing in it is in that format.")
    return None


def refuse_unsupported(root: Path) -> None:
    """Name a format that is known, but cannot be read."""
    for path in files_below(root):
        known = _unsupported(path, root)
        if known:
            raise InputError(
                f"{root} is {known}, told by {path.relative_to(root)}, which is not supported yet. Supported are COCO "
                "JSON, YOLO outlines, LabelMe, CVAT for images, masks with a label map, and Hugging Face datasets: "
                "most tools export one of them."
            )


def _unsupported(path: Path, root: Path) -> str:
    """The title of the format that a file belongs to; empty if it is none of them."""
    if ".tfrecord" in path.name:
        return "a TFRecord dataset"
    if path.suffix == ".ndjson":
        return "a Labelbox export"
    if path.name in ("config_v1.2.json", "config_v2.0.json"):
        return "Mapillary Vistas"
    if path.suffix not in (".json", ".xml", ".txt") or len(path.relative_to(root).parts) > 4:
        return ""
    head = head_of(path)
    return next((title for title, marks in MARKS.items() if all(mark in head for mark in marks)), _by_place(path, head))


def _by_place(path: Path, head: str) -> str:
    words = head.split()
    is_box = path.suffix == ".txt" and path.parent.name == "labels" and words and all(map(_is_number, words))
    return "a YOLO dataset without data.yaml or classes.txt" if is_box else ""


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).replace("-", "", 1).replace("e", "", 1).isdigit()


MARKS = {
    "Pascal VOC with boxes only": ("<annotation>", "<bndbox>"),
    "a Supervisely project": ('"classes"', '"shape"', '"color"'),
    "a Supervisely project (annotations)": ('"objects"', '"classTitle"'),
    "a Label Studio export (its own JSON)": ('"annotations"', '"data"', '"result"'),
    "COCO panoptic": ('"segments_info"',),
    "a VGG Image Annotator project": ('"regions"', '"shape_attributes"'),
    "Darwin JSON (V7)": ('"item"', '"slots"'),
}
