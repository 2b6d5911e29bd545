from pathlib import Path

import pytest

from exports import write_json, write_pictures
from incseg.datasets import open_source
from incseg.errors import InputError

BOX = "<annotation><object><name>cat</name><bndbox><xmin>1</xmin></bndbox></object></annotation>"
UNSUPPORTED = {
    "Pascal VOC with boxes only": ("Annotations/a.xml", BOX),
    "a TFRecord dataset": ("train.tfrecord-00000-of-00002", "x"),
    "a Supervisely project": ("meta.json", {"classes": [{"title": "cat", "shape": "polygon", "color": "#fff"}]}),
    "a Label Studio export": (
        "project-1.json",
        [{"id": 1, "annotations": [{"result": []}], "data": {"image": "a.jpg"}}],
    ),
    "Mapillary Vistas": ("config_v2.0.json", {"labels": []}),
    "COCO panoptic": ("panoptic_val.json", {"annotations": [{"segments_info": []}], "images": [], "categories": []}),
    "a VGG Image Annotator project": ("via.json", {"a.jpg1": {"regions": [{"shape_attributes": {}}]}}),
    "a YOLO dataset without data.yaml or classes.txt": ("labels/a.txt", "0 0.5 0.5 0.1 0.1\n"),
    "a Labelbox export": ("export.ndjson", "{}"),
}


@pytest.mark.parametrize("title", UNSUPPORTED)
def test_a_known_format_that_cannot_be_read_is_named(title: str, tmp_path: Path) -> None:
    name, content = UNSUPPORTED[title]
    write_pictures(tmp_path / "images", ["a.jpg"])
    if isinstance(content, str):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    else:
        write_json(tmp_path / name, content)
    with pytest.raises(
        InputError, match=f"is {title}.*, told by {name}, which is not supported yet. Supported are COCO"
    ):
        open_source("folder", tmp_path)


def test_a_folder_of_our_layout_that_lacks_something_is_told_what(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", ["a.jpg"])
    write_pictures(tmp_path / "masks", ["a.png"])
    with pytest.raises(InputError, match=r"classes\.txt is missing"):
        open_source("folder", tmp_path)
