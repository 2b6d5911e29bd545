"""What UCD's term does in a step of a run: how right its labels are, whether σ tells, and how hard it pulls.

Three questions to a step after the first, on its own training crops, for the network as the step begins and as it ends:

- **The extended map** M̄: how many of the anchors have the right label, where the truth is what the masks show of all
  classes learnt so far; how much of the old classes it finds.
- **σ**: its mean over positive pairs of two rightly labelled anchors and over those with a wrong one, and how often the
  first exceeds the second (0.5: σ says nothing, 1: all of it).
- **Gradients** of every loss term at the embedding: norms, and the cosine between UCD's and the sum of the others.

    python benchmarks/why_ucd.py runs/mib+ucd [--step 1] [--method mib+ucd] [--data-root VOC2012] [--batches 8]

A run of ``mib`` can be asked what the term would have done: ``--method mib+ucd``. Prints lines of JSON.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg import losses
from incseg.batch import Batch, View
from incseg.config import from_yaml, merge, validate
from incseg.engine.assembly import build, launch
from incseg.engine.step_run import StepRun
from incseg.engine.trainer import Trainer
from incseg.loading import TrainingSet
from incseg.methods.contrast import ContrastiveDistillation
from incseg.methods.pixels import OUTSIDE, grid_size, keep_regions, labels_on_grid
from incseg.models.storage import load_model
from incseg.protocol import BACKGROUND, IGNORE
from incseg.run_folder import RunFolder

PAIRS = 4096  # that are drawn of a batch, of either kind


def main() -> None:
    """Print what is asked, for the beginning and the end of the step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--method", help="whose terms to look at; the run's own if not given")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    folder = RunFolder(given.run)
    if not {given.step - 1, given.step} <= set(folder.finished_steps):
        parser.error(f"{given.run} is not the folder of a run that has finished step {given.step}, one after the first")
    changed = {"model": {"weights": "none"}, "engine": {"compile": False}}  # its own weights; plain PyTorch
    changed |= {"method": given.method} if given.method else {}
    changed |= {"data": {"root": given.data_root}} if given.data_root else {}
    config = validate(merge(from_yaml(folder.config).model_dump(), changed))
    with TemporaryDirectory() as nowhere:  # nothing is written: the trainer is built, not run
        trainer = build(config, Path(nowhere), launch(config))
    trainer.student = load_model(folder.model(given.step - 1))[0]
    run = trainer.prepare(trainer.curriculum.steps[given.step])
    print(json.dumps({"when": "beginning", **asked(trainer, run, given.batches)}, ensure_ascii=False), flush=True)
    run.context.student.load_state_dict(load_model(folder.model(given.step))[0].state_dict())
    print(json.dumps({"when": "end", **asked(trainer, run, given.batches)}, ensure_ascii=False), flush=True)


def asked(trainer: Trainer, run: StepRun, batches: int) -> dict[str, float]:
    """The mean of every number over some batches."""
    found: dict[str, list[float]] = {}
    for view, truth in islice(views(trainer, run), batches):
        numbers = labels_and_sigma(view, truth, contrast_of(trainer)) | gradients(trainer, view)
        for name, value in numbers.items():
            found.setdefault(name, []).append(value)
    return {name: float(f"{sum(values) / len(values):.4g}") for name, values in found.items()}


def contrast_of(trainer: Trainer) -> ContrastiveDistillation:
    """UCD's part of the method."""
    return next(part for part in trainer.method.parts if isinstance(part, ContrastiveDistillation))


def views(trainer: Trainer, run: StepRun) -> Iterator[tuple[View, Tensor]]:
    """What the losses see of every batch, and the labels of all classes learnt so far on the same crops."""
    own = run.images.own
    complete = TrainingSet(replace(own, table=trainer.curriculum.training_table(run.step, keep_old=True)))
    seen, whole = (trainer.data.batches(run.step, images, 1) for images in (run.images, complete))
    for batch, labelled in zip(seen, whole, strict=True):
        yield view_of(trainer, run, batch), labelled.labels


def view_of(trainer: Trainer, run: StepRun, batch: Batch) -> View:
    """As in training, but that batch normalisation is as in prediction, so that crops do not depend on one another."""
    run.context.student.eval()
    outputs = run.context.student(batch.images)
    teacher = None if run.teacher is None else run.teacher(batch.images)
    return trainer.method.view(batch, outputs, teacher, run.step)


def gradients(trainer: Trainer, view: View) -> dict[str, float]:
    """Norms at the embedding by the name of the term, and the cosine between UCD's gradient and the others' sum."""
    at = view.student.embedding
    pulls = {
        name: torch.autograd.grad(loss, at, retain_graph=True)[0] for name, loss in trainer.method.losses(view).items()
    }
    others = torch.stack([pull for name, pull in pulls.items() if name != "contrast"]).sum(dim=0)
    cosine = F.cosine_similarity(pulls["contrast"].flatten(), others.flatten(), dim=0)
    return {f"gradient of {name}": pull.norm().item() for name, pull in pulls.items()} | {
        "gradient of all but contrast": others.norm().item(),
        "cosine of contrast with the rest": cosine.item(),
    }


@torch.no_grad()
def labels_and_sigma(view: View, truth: Tensor, contrast: ContrastiveDistillation) -> dict[str, float]:
    """How right M̄ is where it labels an anchor, and what σ says of pairs."""
    assert view.teacher is not None
    size = grid_size(view, contrast.stride)
    probs = F.adaptive_avg_pool2d(view.teacher.logits.softmax(dim=1), size).movedim(1, -1)
    seen, true = (labels_on_grid(labels, size) for labels in (view.labels, truth))
    labels, extended = losses.extended_map(seen, probs, num_classes=view.step.num_classes)
    anchors = keep_regions(labels, contrast.student, view.step)
    used = (anchors != OUTSIDE) & (true != IGNORE)
    right = anchors == true
    is_old = (true != BACKGROUND) & (true < view.step.old_classes)
    return {
        "anchors": used.sum().item(),
        "anchors that are right": share(right, used),
        "old pixels that are anchors and right": share(right, is_old),
        **pairs(anchors[used], right[used], extended[used]),
    }


def share(what: Tensor, among: Tensor) -> float:
    """0 of an empty set."""
    return (what & among).sum().item() / max(among.sum().item(), 1)


def pairs(labels: Tensor, right: Tensor, probs: Tensor) -> dict[str, float]:
    """σ of positive pairs, drawn at random: both right, or at least one wrong."""
    generator = torch.Generator(labels.device).manual_seed(0)
    first, second = torch.randint(len(labels), (2, 64 * PAIRS), device=labels.device, generator=generator)
    positive = (labels[first] == labels[second]) & (first != second)
    first, second = first[positive], second[positive]
    sigma = (probs[first] * probs[second]).sum(dim=1)
    both = right[first] & right[second]
    good, bad = sigma[both][:PAIRS], sigma[~both][:PAIRS]
    if not len(good) or not len(bad):
        return {}
    above = (good[:, None] > bad[None]).float().mean() + 0.5 * (good[:, None] == bad[None]).float().mean()
    return {
        "σ of right pairs": good.mean().item(),
        "σ of wrong pairs": bad.mean().item(),
        "right above wrong": above.item(),
    }


if __name__ == "__main__":
    main()
