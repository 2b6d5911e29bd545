"""``result.json``: scores derived from one confusion matrix per step; nothing in it depends on the clock."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from incseg.metrics import forgetting, intersection_over_union, mean, nan_if_none, none_if_nan, step_scores
from incseg.protocol import Step


def step_entry(step: Step, classes: Sequence[str], images: int, confusion: Tensor) -> dict[str, Any]:
    """The scores of one step; classes by name, missing values None."""
    iou = intersection_over_union(confusion)
    return {
        "step": step.index,
        "new_classes": [classes[c] for c in step.new],
        "training_images": images,
        "miou": {name: none_if_nan(value) for name, value in step_scores(iou, step).items()},
        "iou": {classes[c]: none_if_nan(value) for c, value in enumerate(iou)},
        "confusion": confusion.tolist(),
    }


def history_record(header: Mapping[str, Any], entry: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a model remembers of a step it has learnt: classes, method, data, how it was trained, and its scores.

    Args:
        header: the head of ``result.json``.
        entry: the scores of the step.
        facts: name and validation images of the data, and the schedule.
    """
    kept = {name: entry[name] for name in ("new_classes", "training_images", "miou", "iou")}
    return {**kept, "method": header["method"], "seed": header["seed"], **facts, **header["environment"]}


def run_result(
    header: Mapping[str, Any], classes: Sequence[str], entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The whole result: what was run, every step, and what the steps together say."""
    history = [[nan_if_none(entry["iou"][name]) for name in classes if name in entry["iou"]] for entry in entries]
    forgotten = forgetting(history)
    return {
        **header,
        "classes": list(classes),
        "steps": list(entries),
        "average_miou": none_if_nan(mean(nan_if_none(entry["miou"]["all"]) for entry in entries)),
        "forgetting": {
            "mean": none_if_nan(mean(forgotten[1:])),
            "classes": {classes[c]: none_if_nan(value) for c, value in enumerate(forgotten) if c > 0},
        },
    }
