"""``MODEL_CARD.md``: what a model knows, how it came to know it, how well, and how to use it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from incseg.console import Table, percent
from incseg.deploy.model import Model
from incseg.files import replacing
from incseg.metrics import nan_if_none
from incseg.run_folder import RunFolder


def write_card(model: Model, folder: Path, comparison: Table | None = None) -> None:
    """Describe a model in its folder, with a comparison of before and after its last step, if there is one."""
    with replacing(RunFolder(folder).model_card) as temporary:
        temporary.write_text(model_card(model, folder, comparison), encoding="utf-8")


def model_card(model: Model, folder: Path, comparison: Table | None = None) -> str:
    """The card as Markdown, with the same facts as JSON at its end."""
    architecture, lessons = model.segmenter.architecture, _lessons(model)
    parameters = sum(p.numel() for p in model.segmenter.parameters())
    facts = {
        "classes": list(model.classes),
        "architecture": architecture.model_dump(mode="json"),
        "parameters": parameters,
        "history": lessons,
    }
    parts = [
        f"# {folder.name}",
        f"A segmentation network for {len(model.classes) - 1} classes and background, made with incseg: "
        f"{architecture.decoder} on {architecture.encoder}, {parameters / 1e6:.1f} million parameters.",
        "## How it learnt\n\n" + _history_table(lessons),
        "## What it knows\n\n" + _class_table(model.classes, lessons),
        "IoU is measured after each step on the validation images of that step, on the classes labelled there; "
        "a dash means that no validation image labels the class. Numbers of different steps may stem from different "
        "images.",
        *_comparison(comparison),
        "## How to use it\n\n" + _usage(folder),
        "## The same for machines\n\n```json\n" + json.dumps(facts, indent=1, ensure_ascii=False) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _lessons(model: Model) -> list[dict[str, Any]]:
    """One entry per step. A model from elsewhere has no record of its first classes, only their names."""
    recorded = [dict(record) for record in model.history]
    known = sum(len(record["new_classes"]) for record in recorded)
    before = list(model.classes[1 : len(model.classes) - known])
    return [{"new_classes": before, "method": "trained elsewhere"}, *recorded] if before else recorded


def _history_table(lessons: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            str(index),
            ", ".join(lesson["new_classes"]),
            str(lesson["method"]),
            str(lesson.get("data", "–")),
            str(lesson.get("training_images", "–")),
            str(lesson.get("validation_images", "–")),
            *(percent(nan_if_none(lesson.get("miou", {}).get(group))) for group in ("old", "new", "all")),
        ]
        for index, lesson in enumerate(lessons)
    ]
    headers = ["step", "new classes", "method", "data", "images", "validation", "old mIoU", "new mIoU", "all mIoU"]
    return _markdown(headers, rows)


def _class_table(classes: Sequence[str], lessons: Sequence[Mapping[str, Any]]) -> str:
    """One row per class: since when, and its IoU after every step."""
    rows = []
    for channel, name in enumerate(classes):
        since = next((str(i) for i, lesson in enumerate(lessons) if name in lesson["new_classes"]), "–")
        values = [nan_if_none(lesson.get("iou", {}).get(name)) for lesson in lessons]
        rows.append([str(channel), name, since, *map(percent, values)])
    return _markdown(["id", "class", "since step", *(f"IoU after {index}" for index in range(len(lessons)))], rows)


def _comparison(table: Table | None) -> list[str]:
    if table is None:
        return []
    title = "## Before and after the last step, on the same images (IoU, %)"
    return [title, _markdown(table.headers, table.rows), *filter(None, [table.note])]


def _markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _usage(folder: Path) -> str:
    return f"""```bash
incseg predict {folder} IMAGES --out predictions
incseg extend {folder} --data NEWDATA --out BIGGER
incseg export {folder} --out model.onnx
```

```python
import incseg

prediction = incseg.load("{folder.as_posix()}").predict("image.jpg")
print(prediction.areas)
```"""
