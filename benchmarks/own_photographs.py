"""What an engineer does: a model of one's own photographs, extended twice by new classes, without the old images.

Photographs of Pascal VOC become folders as people have them: a base with its classes labelled, two small extensions
with only their own classes labelled, and a set that labels all of them to measure on. Then everything is done by
commands: ``incseg train``, ``incseg extend`` with every method, ``incseg eval``.

    python benchmarks/own_photographs.py VOC2012 --out runs/own --weights resnet18.safetensors

It writes ``table.md`` and ``numbers.jsonl`` into ``--out``; run again, it resumes, also with other ``--methods``.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from incseg.datasets import Source, Split, open_source
from incseg.datasets.scan import class_presence
from incseg.protocol import BACKGROUND, IGNORE

METHODS = ("analytic", "ft", "mib+ucd")


@dataclass(frozen=True)
class Part:
    """Classes that are labelled together, and how many photographs there are of them."""

    name: str
    classes: tuple[str, ...]
    images: int


BASE = Part("base", ("car", "bus", "train", "person", "bicycle", "motorbike", "chair", "sofa"), 1500)
EXTENSIONS = (Part("pets", ("cat", "dog"), 48), Part("outside", ("bird", "boat", "horse", "aeroplane"), 240))
MEASURED = Part("measured", tuple(name for part in (BASE, *EXTENSIONS) for name in part.classes), 400)


def main() -> None:
    """Prepare the folders, train the base, extend it with every method, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("voc", type=Path, help="folder of VOC 2012")
    parser.add_argument("--out", type=Path, default=Path("runs/own"))
    parser.add_argument("--weights", default="imagenet", help="of the ResNet-18")
    parser.add_argument("--epochs", default="30", help="of the base")
    parser.add_argument("--crop", default="256")
    parser.add_argument("--share", type=float, default=1.0, help="of the photographs, to try the script")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="of the extensions")
    given = parser.parse_args()
    folders = prepared(given.voc, given.out / "data", given.share)
    base = given.out / "base"
    network = ["--model.encoder", "resnet18", "--model.weights", given.weights, "--data.crop-size", given.crop]
    incseg("train", "folder/offline", "--method", "ft", "--data-root", folders[BASE.name], "--out", base,
           "--optim.epochs", given.epochs, *network)  # fmt: skip
    rows = [row for method in given.methods for row in extended(method, base, folders, given.out)]
    (given.out / "numbers.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    (given.out / "table.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


def extended(method: str, base: Path, folders: dict[str, Path], out: Path) -> list[dict[str, Any]]:
    """Add one extension after another; what was there before each, and after it."""
    model, known, rows = base, BASE.classes, []
    for part in EXTENSIONS:
        target = out / f"{part.name}-{method}"
        kept = target.with_suffix(".json")
        if not kept.exists():
            before = scores(model, folders[MEASURED.name])
            seconds = incseg("extend", model, "--data", folders[part.name], "--out", target, "--method", method)
            row = {"method": method, "extension": part.name, "seconds": round(seconds, 1)}
            row |= compared(before, scores(target, folders[MEASURED.name]), known, part.classes)
            kept.write_text(json.dumps(row), encoding="utf-8")
        rows.append(json.loads(kept.read_text(encoding="utf-8")))
        model, known = target, (*known, *part.classes)
    return rows


def compared(
    before: dict[str, Any], after: dict[str, Any], known: Sequence[str], new: Sequence[str]
) -> dict[str, float]:
    """Mean IoU of old classes before and after, of new ones after, and the recall of background; in percent.

    Before, what the model cannot know yet counts as background, as it does for whoever uses that model.
    """

    def mean_iou(found: dict[str, Any], classes: Sequence[str]) -> float:
        shown = [iou for name in classes if (iou := found["classes"][name]["iou"]) is not None]
        return round(100 * float(np.mean(shown)), 1)

    recall = [round(100 * found["classes"]["background"]["recall"], 1) for found in (before, after)]
    return {
        "old_before": mean_iou(before, known),
        "old_after": mean_iou(after, known),
        "new": mean_iou(after, new),
        "background_recall_before": recall[0],
        "background_recall_after": recall[1],
    }


def incseg(*words: object) -> float:
    """Run a command; returns the seconds it took. What it had done before, it does not do again."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "incseg", *map(str, words)], check=True)
    return time.monotonic() - began


def scores(model: Path, folder: Path) -> dict[str, Any]:
    """What ``incseg eval`` says of a model."""
    file = model / "measured.json"
    incseg("eval", model, "--data", folder, "--out", file)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, one row per extension and method."""
    headers = list(rows[0])
    lines = [headers, ["---" if name in ("method", "extension") else "---:" for name in headers]]
    lines += [[str(value) for value in row.values()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def prepared(voc: Path, out: Path, share: float) -> dict[str, Path]:
    """The folders by name. No photograph is in two, and those of the base show no class of an extension."""
    source, taken = open_source("voc", voc), set[int]()
    later = tuple(name for part in EXTENSIONS for name in part.classes)
    for part in (*EXTENSIONS, BASE):
        fitting = showing(source, source.train, part.classes, without=later if part is BASE else ()) - taken
        taken |= write_folder(source, source.train, fitting, part, share, out)
    write_folder(source, source.val, showing(source, source.val, MEASURED.classes), MEASURED, share, out)
    return {part.name: out / part.name for part in (BASE, *EXTENSIONS, MEASURED)}


def showing(source: Source, split: Split, wanted: Sequence[str], without: Sequence[str] = ()) -> set[int]:
    """The photographs with one of these classes, and with none of others."""
    ids, others = ({source.classes.index(name) for name in names} for names in (wanted, without))
    shown = class_presence(split, source.classes)
    return {index for index, found in enumerate(shown) if found & ids and not found & others}


def write_folder(source: Source, split: Split, fitting: set[int], part: Part, share: float, out: Path) -> set[int]:
    """Write as many photographs as the part has, spread over the list, with masks of its classes; returns which."""
    number = min(len(fitting), max(8, round(share * part.images)))
    chosen = [sorted(fitting)[place * len(fitting) // number] for place in range(number)]
    ids = np.full(256, BACKGROUND, np.uint8)
    ids[IGNORE] = IGNORE
    ids[[source.classes.index(name) for name in part.classes]] = range(1, len(part.classes) + 1)
    folder = out / part.name
    if (folder / "classes.txt").exists():
        return set(chosen)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in chosen:
        pixels = split.image(index).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / "images" / f"{split.ids[index]}.jpg", quality=95)
        Image.fromarray(ids[split.mask(index).numpy()]).save(folder / "masks" / f"{split.ids[index]}.png")
    (folder / "classes.txt").write_text("\n".join(["background", *part.classes, ""]))
    return set(chosen)


if __name__ == "__main__":
    main()
