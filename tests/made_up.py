"""Results of runs that were never trained, for tests of what is made of results."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from incseg.config import flat_settings, load_recipe, published_images, to_yaml
from incseg.metrics import none_if_nan, step_scores
from incseg.protocol import Protocol

CLASSES = {"voc": 20, "ade20k": 150, "cityscapes": 19}


def write_result(
    folder: Path,
    protocol: str,
    method: str,
    iou: Callable[[int, int], float],
    *,
    seed: int = 42,
    overrides: dict[str, Any] | None = None,
    steps: int | None = None,
) -> Path:
    """The files of a run that are read as a result, scored as in the paper; ``iou(step, channel)`` is how well."""
    config = load_recipe(protocol, {**(overrides or {}), "method": method, "seed": seed})
    classes = ["background", *(f"class {c}" for c in range(1, CLASSES[protocol.split("/", maxsplit=1)[0]] + 1))]
    images = published_images(protocol, config.data.class_order) or [1] * 99
    entries: list[dict[str, Any]] = []
    planned = Protocol.parse(protocol).steps(len(classes) - 1)
    for step in planned[:steps]:
        values = [iou(step.index, channel) for channel in range(step.num_classes)]
        entries.append(
            {
                "step": step.index,
                "new_classes": [classes[c] for c in step.new],
                "training_images": images[step.index],
                "scored_images": 1240 if step.future else 1449,
                "miou": {name: none_if_nan(value) for name, value in step_scores(values, step).items()},
                "iou": dict(zip(_known(classes, step.num_classes), values, strict=True)),
                "confusion": [],
            }
        )
    settings = {n: v for n, v in flat_settings(config).items() if n not in ("protocol", "method", "seed")}
    result = {
        "protocol": protocol, "method": method, "seed": seed, "settings": settings, "environment": {},
        "scored_as": config.scored_as,
        "classes": _known(classes, len(entries[-1]["iou"])), "steps": entries, "average_miou": 0.5,
        "forgetting": {"mean": None, "classes": {}},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(config))
    (folder / "data.json").write_text(json.dumps({"steps": [""] * len(planned)}))
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def _known(classes: Sequence[str], number: int) -> list[str]:
    return list(classes[:number])
