"""What ``incseg eval`` prints and writes: the scores of a run's models, or of one model on a folder."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from incseg.cli.arguments import DEFAULT
from incseg.config import Layer
from incseg.console import Console, Table, percent, publish
from incseg.deploy.model import Model, open_model
from incseg.deploy.scoring import FolderScores, score_folder
from incseg.engine.rescore import rescore
from incseg.report.class_table import ClassScore, class_table, run_class_table
from incseg.report.summary import summary_table
from incseg.results import Run
from incseg.run_folder import write_json


def score_run(folder: Path, out: Path | None, data_root: Path | None, settings: Layer | None) -> None:
    """Every model of a run on the run's own dataset."""
    result, console = rescore(folder, data_root, settings), Console()
    run = Run(folder, result, label=result["method"])
    console.show(summary_table([run]))
    console.show(run_class_table(run, elsewhere=str(out) if out else "add --out FILE"))
    _write(out, result, console)


def score_model(path: Path, step: int | None, data: Path, out: Path | None) -> None:
    """One model on the images of a folder."""
    model, console = open_model(path, step), Console()
    scores = score_folder(model, data, console, workers=min(DEFAULT.data.workers, os.cpu_count() or 1))
    console.show(_folder_table(model, scores, elsewhere=str(out) if out else "add --out FILE"))
    with_background = percent(scores.miou_with_background)
    console.say(f"mIoU {percent(scores.miou)} %, with background {with_background}{' %' * (with_background != '–')}.")
    for remark in scores.remarks():
        console.say(remark)
    _write(out, {"model": str(model.path), "data": str(data), **scores.to_json()}, console)


def _folder_table(model: Model, scores: FolderScores, elsewhere: str) -> Table:
    """One row per class: the model's, old and new if it has learnt in several steps, and those it does not know."""
    new = set(model.history[-1]["new_classes"] if model.history else ()) & set(model.classes)
    has_learnt_twice = 0 < len(new) < len(model.classes) - 1
    rows = [
        ClassScore(name, *rates, learnt="" if not has_learnt_twice else "new" if name in new else "old")
        for name, rates in scores.rates.items()
    ]
    rows += [ClassScore(name, math.nan) for name in scores.unknown]
    return class_table("IoU per class (%)", rows, "share: of the labelled pixels.", elsewhere)


def _write(out: Path | None, result: Mapping[str, Any], console: Console) -> None:
    publish(scores=result)
    if out is not None:
        write_json(out, result)
        console.say(f"scores: {out}")
