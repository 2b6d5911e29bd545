"""``MODEL_CARD.md``: what a model recognises, how it was trained, how well it does, and how to use it.

The text is ``model_card.md`` beside this file; its YAML header follows the conventions of the Hugging Face Hub.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from incseg.console import Table, percent
from incseg.deploy.model import Model
from incseg.files import replacing
from incseg.hub import is_address
from incseg.metrics import nan_if_none
from incseg.run_folder import RunFolder

TAGS = ["semantic-segmentation", "class-incremental-learning", "continual-learning", "pytorch"]
TASK = "image-segmentation"
METRIC = "mean_iou"
PUBLISHED = ("voc", "ade20k", "cityscapes")  # names of datasets that others know too


def write_card(model: Model, folder: Path, comparison: Table | None = None, remark: str = "") -> None:
    """Describe a model in its folder, with a table of IoU before and after its last step if there is one."""
    with replacing(RunFolder(folder).model_card) as temporary:
        temporary.write_text(model_card(model, folder, comparison, remark), encoding="utf-8")


def model_card(
    model: Model, folder: Path, comparison: Table | None = None, remark: str = "", license: str | None = None
) -> str:
    """The card as Markdown with a YAML header; the facts are repeated as JSON at the end."""
    architecture, steps = model.segmenter.architecture, _steps(model)
    parameters = sum(p.numel() for p in model.segmenter.parameters())
    facts = {
        "classes": list(model.classes),
        "architecture": architecture.model_dump(mode="json"),
        "head": model.segmenter.classifier.in_words,
        "parameters": parameters,
        "history": steps,
    }
    card = ModelCard.from_template(
        _header(folder.name, steps, license, model.classes[0]),
        template_str=(resources.files("incseg.deploy") / "model_card.md").read_text(encoding="utf-8"),
        name=escaped(folder.name),
        num_classes=len(model.classes) - 1,
        architecture=escaped(f"{architecture.decoder} on {architecture.encoder}"),
        parameters=f"{parameters / 1e6:.1f}",
        head=escaped(model.segmenter.classifier.in_words),
        history_table=_history_table(steps),
        remark=escaped(remark),
        class_table=_class_table(model.classes, steps),
        comparison_table=_markdown_table(comparison.headers, comparison.rows) if comparison else "",
        comparison_note=escaped(comparison.note) if comparison else "",
        folder_in_shell=shlex.quote(_address(folder)),
        folder_in_python=json.dumps(_address(folder), ensure_ascii=False),
        facts=json.dumps(facts, indent=1, ensure_ascii=False),
    )
    return f"{str(card).rstrip()}\n"


def escaped(text: str) -> str:
    r"""Text from outside as one line of Markdown that shows it literally: no markup, no HTML, no table cell ends in it.

    >>> print(escaped("a|b <b>*c*</b>"))
    a\|b \<b\>\*c\*\</b\>
    """
    return re.sub(r"([\\`*_\[\]<>|~&$!@]|:(?=//)|(?<=www)\.)", r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _steps(model: Model) -> list[dict[str, Any]]:
    """One entry per step. Of a model trained elsewhere only the names of its first classes are known."""
    recorded = [dict(record) for record in model.history]
    known = sum(len(record["new_classes"]) for record in recorded)
    before = list(model.classes[1 : len(model.classes) - known])
    return [{"new_classes": before, "method": "trained elsewhere"}, *recorded] if before else recorded


def _address(folder: Path) -> str:
    """As a person types it: a path would write hf://user/name with one slash."""
    return _one_line(folder.as_posix().replace("hf:/", "hf://", 1) if is_address(folder) else folder.as_posix())


def _header(name: str, steps: Sequence[Mapping[str, Any]], license: str | None, background: str) -> ModelCardData:
    """The metadata that the Hub reads, with the mIoU after the last step where it was measured.

    That of all classes only where all were: an extension may have images of the new ones alone.
    """
    last_step = steps[-1]
    published = [str(step.get("data")) for step in steps if step.get("data") in PUBLISHED]
    dataset = _one_line(str(last_step.get("data", "")))
    all_measured = None not in [iou for scored, iou in last_step.get("iou", {}).items() if scored != background]
    scores = {group: last_step.get("miou", {}).get(group) for group in ("all", "old", "new")}
    results = [
        EvalResult(
            task_type=TASK,
            dataset_type=dataset,
            dataset_name=dataset,
            metric_type=METRIC,
            metric_name=f"mIoU of {group} classes",
            metric_value=round(value, 4),
        )
        for group, value in scores.items()
        if value is not None and dataset and (group != "all" or all_measured)
    ]
    return ModelCardData(
        library_name="incseg",
        pipeline_tag=TASK,
        tags=TAGS,
        license=license,
        datasets=list(dict.fromkeys(published)) or None,
        metrics=[METRIC],
        model_name=_one_line(name) or "model",
        eval_results=results or None,
    )


def _history_table(steps: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            str(index),
            ", ".join(step["new_classes"]),
            str(step["method"]),
            *(str(step.get(fact, "–")) for fact in ("data", "training_images", "validation_images")),
            *(percent(nan_if_none(step.get("miou", {}).get(group))) for group in ("old", "new", "all")),
        ]
        for index, step in enumerate(steps)
    ]
    headers = ["step", "new classes", "method", "data", "images", "validation", "old mIoU", "new mIoU"]
    return _markdown_table([*headers, "all mIoU w/o bg"], rows)


def _class_table(classes: Sequence[str], steps: Sequence[Mapping[str, Any]]) -> str:
    """One row per class: the step in which it was learnt, and its IoU after every step."""
    rows = []
    for channel, name in enumerate(classes):
        since = next((str(index) for index, step in enumerate(steps) if name in step["new_classes"]), "–")
        values = [nan_if_none(step.get("iou", {}).get(name)) for step in steps]
        rows.append([str(channel), name, since, *map(percent, values)])
    headers = ["id", "class", "since step", *(f"IoU after step {index}" for index in range(len(steps)))]
    return _markdown_table(headers, rows)


def _markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[escaped(cell) for cell in line] for line in (headers, *rows)]
    lines.insert(1, ["---"] * len(headers))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
