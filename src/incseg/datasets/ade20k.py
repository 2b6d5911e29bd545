"""ADE20K, the scene parsing challenge of 2016: 20 210 training and 2 000 validation images, 150 classes."""

from pathlib import Path

from incseg.datasets.file_split import FileSplit
from incseg.datasets.source import Source, dataset, existing_root
from incseg.errors import InputError

CLASSES = (
    "background",
    "wall", "building", "sky", "floor", "tree", "ceiling", "road", "bed", "windowpane", "grass",
    "cabinet", "sidewalk", "person", "earth", "door", "table", "mountain", "plant", "curtain", "chair",
    "car", "water", "painting", "sofa", "shelf", "house", "sea", "mirror", "rug", "field",
    "armchair", "seat", "fence", "desk", "rock", "wardrobe", "lamp", "bathtub", "railing", "cushion",
    "base", "box", "column", "signboard", "chest of drawers", "counter", "sand", "sink", "skyscraper", "fireplace",
    "refrigerator", "grandstand", "path", "stairs", "runway", "case", "pool table", "pillow", "screen door", "stairway",
    "river", "bridge", "bookcase", "blind", "coffee table", "toilet", "flower", "book", "hill", "bench",
    "countertop", "stove", "palm", "kitchen island", "computer", "swivel chair", "boat", "bar", "arcade machine",
    "hovel",
    "bus", "towel", "light", "truck", "tower", "chandelier", "awning", "streetlight", "booth", "television receiver",
    "airplane", "dirt track", "apparel", "pole", "land", "bannister", "escalator", "ottoman", "bottle", "buffet",
    "poster", "stage", "van", "ship", "fountain", "conveyer belt", "canopy", "washer", "plaything", "swimming pool",
    "stool", "barrel", "basket", "waterfall", "tent", "bag", "minibike", "cradle", "oven", "ball",
    "food", "step", "tank", "trade name", "microwave", "pot", "animal", "bicycle", "lake", "dishwasher",
    "screen", "blanket", "sculpture", "hood", "sconce", "vase", "traffic light", "tray", "ashcan", "fan",
    "pier", "crt screen", "plate", "monitor", "bulletin board", "shower", "radiator", "glass", "clock", "flag",
)  # fmt: skip

# The class orders of MiB. Order a is the dataset's own. Of b the authors publish which classes each step of 50-50,
# 100-50 and 100-10 learns; within such a step any order will do, here by id. Order c is their file order-b.txt.
ORDER_B = (
    1, 9, 14, 18, 22, 24, 25, 27, 28, 29, 32, 38, 42, 45, 46, 47, 48, 49, 54, 56, 58, 61, 62, 63, 69,
    74, 75, 76, 77, 81, 82, 84, 90, 93, 96, 100, 103, 104, 109, 117, 119, 121, 123, 128, 129, 130, 134, 135, 136, 144,
    3, 5, 6, 8, 10, 12, 13, 19, 21, 23, 26, 31, 33, 34, 36, 39, 40, 43, 44, 53, 55, 57, 60, 70, 71,
    80, 86, 87, 91, 95, 99, 101, 105, 106, 107, 113, 116, 120, 125, 126, 131, 132, 133, 140, 142, 143, 147, 148, 149,
    150,
    11, 16, 50, 64, 66, 73, 89, 92, 145, 146,
    30, 37, 51, 52, 72, 85, 98, 114, 115, 138,
    2, 35, 65, 97, 110, 111, 112, 118, 124, 141,
    4, 7, 15, 41, 67, 78, 79, 88, 108, 139,
    17, 20, 59, 68, 83, 94, 102, 122, 127, 137,
)  # fmt: skip
ORDER_C = (
    74, 19, 119, 79, 77, 32, 65, 142, 69, 83, 111, 13, 37, 10, 20, 57, 105, 70, 56, 133, 30, 128, 27, 129, 132,
    146, 109, 144, 46, 31, 23, 16, 66, 12, 43, 147, 52, 28, 5, 33, 143, 86, 87, 17, 11, 82, 134, 138, 76, 110,
    97, 106, 67, 1, 123, 68, 29, 41, 45, 61, 124, 25, 26, 24, 95, 40, 96, 118, 48, 98, 114, 34, 139, 102, 63,
    85, 149, 54, 6, 94, 112, 50, 36, 81, 78, 35, 115, 8, 44, 71, 99, 121, 84, 135, 136, 90, 9, 14, 120, 126,
    4, 18, 39, 73, 137, 7, 113, 101, 3, 64,
    55, 127, 51, 116, 47, 140, 62, 148, 80, 60,
    92, 42, 59, 91, 49, 89, 108, 125, 22, 58,
    145, 130, 38, 141, 2, 53, 131, 104, 100, 117,
    88, 75, 122, 150, 21, 72, 107, 15, 93, 103,
)  # fmt: skip
ORDERS = {"a": tuple(range(len(CLASSES))), "b": (0, *ORDER_B), "c": (0, *ORDER_C)}
LAYOUT = "{images,annotations}/{training,validation}/ with *.jpg and *.png (or an ADEChallengeData2016/ with these)"


@dataset(
    "ade20k",
    "ADE20K scenes (ADEChallengeData2016), 150 classes; orders of learning a, b, c by --data.class-order",
    tasks=("100-50", "100-10", "100-5", "50-50", "offline"),
    published_images=(20210, 2000),
    disjoint="balanced",
)
def open_ade20k(root: Path | None) -> Source:
    """List the files by name; ``root`` is ADEChallengeData2016 or the folder above it."""
    root = existing_root(root, "ade20k", LAYOUT)
    inside = next((r for r in (root, root / "ADEChallengeData2016") if (r / "images").is_dir()), None)
    if inside is None:
        raise InputError(f"--data-root {root} does not look like ADE20K: it must hold {LAYOUT}.")
    train, val = _files(inside, "training"), _files(inside, "validation")
    return Source("ade20k", CLASSES, train, val, orders=ORDERS)


def _files(root: Path, split: str) -> FileSplit:
    """All names in either folder; a missing image or mask is reported by ``open_source`` and ``data check``."""
    images, masks = root / "images" / split, root / "annotations" / split
    for folder in (images, masks):
        if not folder.is_dir():
            raise InputError(f"{folder} is missing: ADE20K is {LAYOUT}.")
    names = sorted({path.stem for path in (*images.glob("[!.]*.jpg"), *masks.glob("[!.]*.png"))})
    if not names:
        raise InputError(f"{images} and {masks} hold no image and no mask: ADE20K is {LAYOUT}.")
    return FileSplit(names, [images / f"{name}.jpg" for name in names], [masks / f"{name}.png" for name in names])
