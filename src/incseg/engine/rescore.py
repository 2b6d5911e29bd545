"""``incseg eval``: score the saved models of a run again, for example with other settings of the evaluation."""

from pathlib import Path
from typing import Any

from incseg.config import Layer, RunConfig, from_yaml, merge, validate
from incseg.console import Console
from incseg.curriculum import build_curriculum
from incseg.engine.admission import check_rescoring
from incseg.engine.assembly import LINEAGE, launch, run_header
from incseg.engine.checkpoint import FinishedStep
from incseg.engine.evaluator import number_scored, run_result, score_step, step_entry
from incseg.engine.left_out import LeftOut, over_all
from incseg.engine.machine import enough_memory_to_score
from incseg.errors import InputError
from incseg.models.storage import load_model
from incseg.protocol import Protocol
from incseg.results import Run
from incseg.run_folder import RunFolder


def rescore(run: Path, data_root: Path | None = None, settings: Layer | None = None) -> dict[str, Any]:
    """The result of a run, from its models alone, scored as it was or as ``settings`` say; nothing is written."""
    folder = RunFolder(run)
    config = from_yaml(folder.config)
    check_rescoring(settings or {}, config)
    moved = {"data": {"root": data_root}} if data_root is not None else {}
    return _rescore(folder, validate(merge(merge(config.model_dump(), settings or {}), moved)))


def _rescore(folder: RunFolder, config: RunConfig) -> dict[str, Any]:
    here = config.engine.model_copy(update={"accelerator": "auto", "devices": 1, "nodes": 1, "precision": "auto"})
    alone = config.model_copy(update={"engine": here})  # in one process, whatever trained it
    fabric = launch(alone)
    curriculum = build_curriculum(Protocol.parse(config.protocol), config.data.after_training)
    entries: list[dict[str, Any]] = []
    skips = config.data.on_error == "skip"
    for step in curriculum.steps:
        finished = FinishedStep.load_scored(folder, step.index)
        if finished is None:
            break
        segmenter, classes = load_model(folder.model(step.index), fabric.device)
        left_out = LeftOut(skips, Console(stderr=True).say)
        with enough_memory_to_score(config):
            confusion = score_step(segmenter, curriculum, step, alone, fabric.device, note=left_out.from_scoring)
        images, scored = (
            finished.scores.get("training_images", 0),
            number_scored(curriculum, step) - len(left_out.scoring),
        )
        domains = [curriculum.domains_of(other) for other in curriculum.steps[: step.index + 1]]
        unlabelled = curriculum.unlabelled(step)
        entry = step_entry(step, classes, images, confusion.cpu(), scored, domains, unlabelled)
        entries.append(entry | left_out.entry())
    if not entries:
        raise InputError(f"{folder.path} has no finished step to score.")
    known = curriculum.classes[: curriculum.steps[len(entries) - 1].num_classes]
    before = Run.read(folder.path).result if folder.result.is_file() else {}
    lineage = {name: before[name] for name in LINEAGE if name in before}
    unreadable = over_all(curriculum.unreadable, entries) if skips else None
    return run_result(run_header(config, fabric, lineage), known, entries, unreadable)
