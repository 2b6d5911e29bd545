"""Background after a step: where new classes have taken its score, give it back as much as it had."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.batch import Batch
from incseg.models import Segmenter
from incseg.protocol import BACKGROUND

MOST_CELLS = 1_000_000  # torch.quantile takes up to 16 million values


@torch.no_grad()
def background_shift(student: Segmenter, teacher: Segmenter, batches: Iterable[Batch]) -> float:
    """What to add to background's score, so that the student says background as often as its teacher did.

    Only cells labelled background are looked at: there a new class is wrong, and the teacher's word is all that is
    known of the old ones. With m the margin by which the best other class beats background in a cell, and s the share
    of these cells that the teacher calls background, it is the s-quantile of m: a share s of them then has m ≤ shift.

    Returns:
        A number ≥ 0: background is never lowered. 0 where no cell is labelled background.
    """
    training = student.training
    student.eval()
    pairs = [_margins(student, teacher, batch) for batch in batches]
    student.train(training)
    margins, found = (torch.cat(part)[:MOST_CELLS] for part in zip(*pairs, strict=True))
    return max(float(margins.quantile(found.mean(), interpolation="lower")), 0.0) if len(margins) else 0.0


def _margins(student: Segmenter, teacher: Segmenter, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of each cell labelled background: the student's margin, and whether the teacher says background."""
    scores, taught = student(batch.images).logits.float(), teacher(batch.images).logits
    labels = F.interpolate(batch.labels[:, None].float(), size=scores.shape[-2:], mode="nearest-exact")[:, 0]
    cells = labels == BACKGROUND
    margins = scores[:, 1:].amax(dim=1) - scores[:, BACKGROUND]
    return margins[cells], (taught.argmax(dim=1) == BACKGROUND)[cells].float()
