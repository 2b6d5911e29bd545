"""Small datasets as labelling tools export them: folders, file names and fields as the tools write them."""

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

WIDTH, HEIGHT = 48, 40
BOX = [(4.0, 6.0), (30.0, 6.0), (30.0, 34.0), (4.0, 34.0)]  # a large square
INNER = [(10.0, 12.0), (24.0, 12.0), (18.0, 28.0)]  # a triangle inside it
Points = Sequence[tuple[float, float]]


def flat(points: Points) -> list[float]:
    return [value for point in points for value in point]


def picture() -> Image.Image:
    """A photograph of BOX and INNER."""
    image = Image.new("RGB", (WIDTH, HEIGHT), (90, 120, 90))
    ImageDraw.Draw(image).polygon(BOX, fill=(200, 60, 60))
    ImageDraw.Draw(image).polygon(INNER, fill=(60, 60, 220))
    return image


def write_pictures(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        picture().save(folder / name)


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def coco(names: Sequence[str], annotations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A COCO file with two categories whose ids are neither contiguous nor sorted."""
    return {
        "info": {"description": ""},
        "licenses": [],
        "images": [{"id": 7 + i, "file_name": n, "width": WIDTH, "height": HEIGHT} for i, n in enumerate(names)],
        "categories": [{"id": 18, "name": "cat", "supercategory": "pet"}, {"id": 3, "name": "box"}],
        "annotations": [{"id": i, "iscrowd": 0, **each} for i, each in enumerate(annotations, start=1)],
    }


def write_coco(root: Path) -> Path:
    """As CVAT and the official archive write it: annotations/instances_*.json, and images in folders by split."""
    for part, names in (("train", ["a.jpg", "b.jpg"]), ("val", ["c.jpg"])):
        write_pictures(root / "images" / part, names)
        annotations = [
            {"image_id": 7 + index, "category_id": number, "segmentation": [flat(outline)]}
            for index in range(len(names))
            for number, outline in ((18, INNER), (3, BOX))
        ]
        write_json(root / "annotations" / f"instances_{part}.json", coco(names, annotations))
    return root


def write_yolo(root: Path, names: str = "names:\n  0: box\n  1: cat\n", path: str = "path: /home/me/data\n") -> Path:
    """As Ultralytics describes it; the YAML file was written on another machine."""
    for part, stems in (("train", ["a", "b"]), ("val", ["c"])):
        write_pictures(root / "images" / part, [f"{stem}.jpg" for stem in stems])
        (root / "labels" / part).mkdir(parents=True)
        for stem in stems:
            lines = [
                " ".join(
                    [
                        str(number),
                        *(
                            f"{value / size:.6f}"
                            for point in outline
                            for value, size in zip(point, (WIDTH, HEIGHT), strict=True)
                        ),
                    ]
                )
                for number, outline in ((1, INNER), (0, BOX))
            ]
            (root / "labels" / part / f"{stem}.txt").write_text("\n".join(lines) + "\n")
    (root / "data.yaml").write_text(f"{path}train: images/train\nval: images/val\n{names}")
    return root


def write_ultralytics_masks(root: Path) -> Path:
    """Ultralytics' semantic layout: the number of a class in the masks is its number in names, 255 is ignored."""
    for part, stems in (("train", ["a", "b"]), ("val", ["c"])):
        write_pictures(root / "images" / part, [f"{stem}.jpg" for stem in stems])
        (root / "masks" / part).mkdir(parents=True)
        for stem in stems:
            Image.fromarray(numbers(box=1, cat=2, rest=0)).save(root / "masks" / part / f"{stem}.png")
    (root / "data.yaml").write_text(
        "path: .\ntrain: images/train\nval: images/val\nmasks_dir: masks\nnames: [ground, box, cat]\n"
    )
    return root


def numbers(box: int, cat: int, rest: int) -> Any:
    """(H, W) a mask of BOX with INNER on top, with some pixels of 255."""
    canvas = Image.new("L", (WIDTH, HEIGHT), rest)
    ImageDraw.Draw(canvas).polygon(BOX, fill=box)
    ImageDraw.Draw(canvas).polygon(INNER, fill=cat)
    values = np.array(canvas)
    values[:2] = 255
    return values


def labelme(name: str, shapes: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "version": "5.5.0",
        "flags": {},
        "shapes": [
            {"group_id": None, "description": "", "shape_type": "polygon", "flags": {}, "mask": None, **shape}
            for shape in shapes
        ],
        "imagePath": name,
        "imageData": None,
        "imageHeight": HEIGHT,
        "imageWidth": WIDTH,
        **fields,
    }


def write_labelme(root: Path) -> Path:
    """JSON files beside the images; the image of c lies inside its file."""
    write_pictures(root, ["a.jpg", "b.jpg"])
    shapes = [{"label": "box", "points": BOX}, {"label": "cat", "points": INNER}]
    write_json(root / "a.json", labelme("a.jpg", shapes))
    write_json(root / "b.json", labelme("..\\photos\\b.jpg", shapes))
    file = io.BytesIO()
    picture().save(file, "JPEG")
    write_json(root / "c.json", labelme("c.jpg", shapes, imageData=base64.b64encode(file.getvalue()).decode()))
    return root


def cvat_image(name: str, shapes: str, subset: str = "") -> str:
    part = f' subset="{subset}"' if subset else ""
    return f'<image id="0" name="{name}"{part} width="{WIDTH}" height="{HEIGHT}">{shapes}</image>'


def cvat_polygon(label: str, points: Points, z_order: int = 0) -> str:
    written = ";".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return f'<polygon label="{label}" source="manual" occluded="0" points="{written}" z_order="{z_order}"></polygon>'


def write_cvat(root: Path, images: str | None = None) -> Path:
    """annotations.xml and images/."""
    shapes = cvat_polygon("cat", INNER, z_order=1) + cvat_polygon("box", BOX)
    write_pictures(root / "images", ["a.jpg", "b.jpg", "c.jpg"])
    images = images if images is not None else "".join(cvat_image(name, shapes) for name in ("a.jpg", "b.jpg", "c.jpg"))
    labels = "".join(f"<label><name>{name}</name><color>#fafafa</color></label>" for name in ("box", "cat"))
    (root / "annotations.xml").write_text(
        '<?xml version="1.0" encoding="utf-8"?>\n<annotations><version>1.1</version><meta><task><id>1</id>'
        f"<labels>{labels}</labels></task></meta>{images}</annotations>"
    )
    return root


RED, BLUE = (250, 50, 83), (36, 179, 83)


def colours() -> Image.Image:
    values = numbers(box=1, cat=2, rest=0)
    values[:2] = 0
    return Image.fromarray(np.array([(0, 0, 0), RED, BLUE], np.uint8)[values])


def write_cvat_masks(root: Path) -> Path:
    """CVAT's "Segmentation mask 1.1" with images."""
    write_pictures(root / "JPEGImages", ["a.jpg", "b.jpg", "c.jpg"])
    for folder in ("SegmentationClass", "SegmentationObject"):
        (root / folder).mkdir()
        for name in "abc":
            colours().save(root / folder / f"{name}.png")
    (root / "labelmap.txt").write_text(
        f"# label:color_rgb:parts:actions\nbackground:0,0,0::\nbox:{','.join(map(str, RED))}::\n"
        f"cat:{','.join(map(str, BLUE))}::\n"
    )
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "default.txt").write_text("a\nb\nc\n")
    return root


def write_camvid(root: Path) -> Path:
    """CamVid as it is on Kaggle: folders by split, their masks beside, class_dict.csv."""
    for part, name in (("train", "a"), ("val", "b"), ("test", "c")):
        write_pictures(root / part, [f"{name}.png"])
        (root / f"{part}_labels").mkdir()
        colours().save(root / f"{part}_labels" / f"{name}_L.png")
    with (root / "class_dict.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["name", "r", "g", "b"], ["Void", 0, 0, 0], ["box", *RED], ["cat", *BLUE]])
    return root


def write_roboflow_masks(root: Path) -> Path:
    """Roboflow's semantic masks: x.jpg beside x_mask.png, and _classes.csv in every split."""
    for part, name in (("train", "a"), ("valid", "b")):
        write_pictures(root / part, [f"{name}.jpg"])
        Image.fromarray(numbers(box=1, cat=2, rest=0)).save(root / part / f"{name}_mask.png")
        (root / part / "_classes.csv").write_text("Pixel Value, Class\n0, background\n1, box\n2, cat\n")
    return root


def write_parquet(root: Path) -> Path:
    """As the hub has it: data/SPLIT-00000-of-00001.parquet with structs of bytes and path."""
    import pyarrow
    from pyarrow import parquet

    def encoded(image: Image.Image) -> dict[str, Any]:
        file = io.BytesIO()
        image.save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    (root / "data").mkdir(parents=True)
    mask = Image.fromarray(numbers(box=1, cat=2, rest=0))
    for part, count in (("train", 2), ("validation", 1)):
        rows = pyarrow.table({"image": [encoded(picture())] * count, "label": [encoded(mask)] * count})
        parquet.write_table(rows, root / "data" / f"{part}-00000-of-00001.parquet", row_group_size=1)
    write_json(root / "id2label.json", {"0": "background", "1": "box", "2": "cat"})
    return root


def write_saved_to_disk(root: Path) -> Path:
    """As ``DatasetDict.save_to_disk`` writes it."""
    import pyarrow
    from pyarrow import parquet

    parts = write_parquet(root.parent / f"{root.name}-parquet") / "data"
    for part in ("train", "validation"):
        folder = root / part
        folder.mkdir(parents=True)
        rows = parquet.read_table(parts / f"{part}-00000-of-00001.parquet")
        with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), rows.schema) as stream:
            stream.write_table(rows)
        write_json(folder / "dataset_info.json", {"features": {}})
        write_json(folder / "state.json", {"_split": part})
    write_json(root / "dataset_dict.json", {"splits": ["train", "validation"]})
    (root / "classes.txt").write_text("background\nbox\ncat\n")
    return root


WRITERS = {
    "coco": write_coco,
    "yolo": write_yolo,
    "ultralytics masks": write_ultralytics_masks,
    "labelme": write_labelme,
    "cvat": write_cvat,
    "cvat masks": write_cvat_masks,
    "camvid": write_camvid,
    "roboflow masks": write_roboflow_masks,
    "parquet": write_parquet,
    "saved to disk": write_saved_to_disk,
}
