"""Run folders as a training leaves them, made up: for tests of what is shown of runs."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from incseg.engine.evaluator import run_result, step_entry
from incseg.images import index_image
from incseg.protocol import steps

NAMES = ("background", "<img src=x onerror=alert(1)>", "\"'&", "</script><b>dog</b>", "plain")


def write_run(
    folder: Path,
    method: str = "ft",
    *,
    classes: Sequence[str] = NAMES,
    task: str = "2-2",
    seed: int = 1,
    pictures: int = 2,
    size: int = 24,
) -> Path:
    """A finished run with believable numbers; ``method`` decides how much is forgotten."""
    entries = []
    for step in steps(task, len(classes) - 1):
        confusion = torch.eye(step.num_classes, dtype=torch.int64) * 900 + 10
        for channel in step.old if method == "ft" else ():
            confusion[channel] = 0
            confusion[channel, 0] = 1000
        entries.append(step_entry(step, classes[: step.num_classes], 12, confusion.expand(1, 2, -1, -1)))
        _write_pictures(folder / f"step-{step.index}" / "predictions", step.num_classes, pictures, size, method == "ft")
    header = {"protocol": f"folder/{task}/overlapped", "method": method, "seed": seed, "settings": {},
              "environment": {"torch": "2.15", "device": "cpu"}}  # fmt: skip
    (folder / "result.json").write_text(json.dumps(run_result(header, classes, entries)))
    (folder / "config.yaml").write_text(f"method: {method}\nname: <script>alert(1)</script>\n")
    lines = [
        {"step": f"step {index}", "iteration": i, "epoch": 1, "segmentation": 1 / i, "learning_rate": 0.1}
        | ({"distillation": 0.1 * i} if index and method != "ft" else {})
        for index in range(len(entries))
        for i in range(1, 21)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _write_pictures(folder: Path, known: int, number: int, size: int, forgetful: bool) -> None:
    """Stripes, one per class; a forgetful model sees its newest class alone."""
    folder.mkdir(parents=True)
    stripes = np.tile(np.arange(size) * known // size, (size, 1)).astype(np.uint8)
    stripes[0] = 255
    prediction = np.where(stripes == known - 1, stripes, 0) if forgetful else np.where(stripes == 255, 0, stripes)
    for index in range(number):
        Image.new("RGB", (size, size), (200, 40 * index, 90)).save(folder / f"{index:02d}.image.jpg")
        index_image(np.roll(stripes, index, axis=0)).save(folder / f"{index:02d}.truth.png")
        index_image(np.roll(prediction, index, axis=0).astype(np.uint8)).save(folder / f"{index:02d}.prediction.png")
