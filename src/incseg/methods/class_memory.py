"""What is remembered of the features of every class, gathered after the step that learnt it."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg import losses
from incseg.batch import Batch, Outputs, in_float32
from incseg.losses import FeatureModel, Mixture
from incseg.methods.part import Context
from incseg.methods.pixels import OUTSIDE, labels_on_grid
from incseg.models import Segmenter
from incseg.protocol import BACKGROUND
from incseg.seeding import seed_from

MOST_FEATURES = 4096  # of a class, to which its mixture is fitted


def cells_of(outputs: Outputs) -> Tensor:
    """(B·h·w, D) the embedding, cell by cell."""
    return outputs.embedding.movedim(1, -1).flatten(0, 2)


def labels_of(outputs: Outputs, labels: Tensor) -> Tensor:
    """(B, h, w) the labels at the centres of the embedding's cells."""
    height, width = outputs.embedding.shape[-2:]
    return labels_on_grid(labels, (height, width))


def background_as(predicting: Outputs, labels: Tensor) -> Tensor:
    """(B, h, w) the class that a network gives the cells labelled background; −1 elsewhere."""
    return torch.where(labels_of(predicting, labels) == BACKGROUND, predicting.logits.argmax(dim=1), OUTSIDE)


@torch.no_grad()
def predicted_counts(context: Context, teacher: Segmenter) -> tuple[Tensor, int]:
    """(K,) cells of each class that a teacher finds in an epoch's background, and the number of batches in it."""
    counts, batches = torch.zeros(context.step.old_classes, dtype=torch.float64, device=teacher.mean.device), 0
    for batch, outputs in _pass(context, teacher):
        found = background_as(outputs, batch.labels).flatten()
        counts += losses.class_sums(torch.ones_like(found)[:, None], found, num_classes=len(counts))[:, 0]
        batches += 1
    return losses.sum_over_processes(counts), batches


@torch.no_grad()
def gather_model(context: Context) -> FeatureModel:
    """Of every class that the step labels, background among them; other classes are without pixels."""
    classes, sums = context.step.num_classes, torch.zeros(())
    for batch, outputs in _pass(context, context.student.eval()):
        labels = labels_of(outputs, batch.labels).flatten()
        found = losses.feature_sums(cells_of(outputs), labels, num_classes=classes)
        sums = found + sums.to(found.device)
    return losses.feature_model(losses.sum_over_processes(sums))


@torch.no_grad()
def gather_mixtures(context: Context, components: int) -> Mixture:
    """(C, K), (C, K, D) and (C, K, D): mixtures of the step's new classes; the shares of others are 0.

    They are fitted to features chosen at random, of all processes together.
    """
    student, random = context.student.eval(), torch.Generator()
    random.manual_seed(seed_from(context.seed, "features", losses.process_rank()))
    drawn = _no_features(context)
    for batch, outputs in _pass(context, student):
        features, labels = cells_of(outputs), labels_of(outputs, batch.labels).flatten()
        keys = torch.rand(len(labels), generator=random).to(labels.device)
        for channel in context.step.new:
            mine = labels == channel
            drawn[channel] = _highest(torch.cat([drawn[channel], torch.cat([keys[mine, None], features[mine]], dim=1)]))
    fitted = []
    for channel in range(context.step.num_classes):
        # As many rows in every process; the key of one that is only filled in is 0.
        own = F.pad(drawn[channel], (0, 0, 0, MOST_FEATURES - len(drawn[channel])))
        together = _highest(losses.gathered_over_processes(own))
        fitted.append(losses.fit_mixture(together[together[:, 0] > 0, 1:], components))
    shares, means, stds = (torch.stack(values) for values in zip(*fitted, strict=True))
    return Mixture(shares, means, stds)


def _no_features(context: Context) -> list[Tensor]:
    student = context.student
    none = torch.zeros(0, 1 + student.trained_head.channels, device=student.mean.device)
    return [none] * context.step.num_classes


def _highest(rows: Tensor) -> Tensor:
    """The rows with the highest keys, which stand in the first column: a random choice, the same in any order."""
    return rows[rows[:, 0].argsort(descending=True)[:MOST_FEATURES]]


@torch.no_grad()
def gather_drift(context: Context, teacher: Segmenter) -> tuple[Tensor, Tensor, Tensor]:
    """How far old classes have moved where both networks are sure of them, on average over the step's images.

    Returns (K, D) the difference of unit features, (K, D) of the features themselves, and (K,) the number of cells.
    """
    student, channels, sums = context.student.eval(), context.student.trained_head.channels, torch.zeros(())
    for batch, before in _pass(context, teacher):
        after = in_float32(student(batch.images))
        found = background_as(before, batch.labels)
        agreed = (found == background_as(after, batch.labels)) & (found != BACKGROUND) & _sure(before) & _sure(after)
        old, new = cells_of(before), cells_of(after)
        values = torch.cat(
            [F.normalize(new, dim=1) - F.normalize(old, dim=1), new - old, torch.ones_like(old[:, :1])], dim=1
        )
        labels = found.where(agreed, OUTSIDE).flatten()
        moved = losses.class_sums(values, labels, num_classes=context.step.old_classes)
        sums = moved + sums.to(moved.device)
    sums = losses.sum_over_processes(sums)
    agreed_cells = sums[:, -1]
    means = sums[:, :-1] / agreed_cells.clamp_min(1).unsqueeze(1)
    return means[:, :channels], means[:, channels:], agreed_cells


def _sure(outputs: Outputs) -> Tensor:
    """(B, h, w) bool: where the best class exceeds the second by more than 0.7."""
    best, second = outputs.logits.softmax(dim=1).topk(2, dim=1).values.unbind(dim=1)
    return best - second > losses.SURE


def _pass(context: Context, network: Segmenter) -> Iterator[tuple[Batch, Outputs]]:
    """One epoch of the step's batches through a network."""
    for batch in context.batches(1):
        yield batch, in_float32(network(batch.images))
