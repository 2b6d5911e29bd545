"""Labels that come from the teacher: the extended map of UCD, and how certain a prediction is."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.losses.coarse import is_fused, read_pixels
from incseg.protocol import BACKGROUND, IGNORE
from incseg.upsampling import Scores, full_size


def prediction(scores: Scores) -> tuple[Tensor, Tensor]:
    """The most likely class of every pixel, and its probability.

    Args:
        scores: (B, C, H, W) logits, or coarse ones for that size; no gradient flows into them.

    Returns:
        classes: (B, H, W) int64.
        probability: (B, H, W) float.
    """
    if is_fused(scores):
        return read_pixels(scores, "probability")
    highest, classes = torch.softmax(full_size(scores).detach(), dim=1).max(dim=1)
    return classes, highest


def prediction_with_entropy(scores: Scores, *, released_for: int | None = None) -> tuple[Tensor, Tensor]:
    """The most likely class of every pixel, and how uncertain it is.

    Args:
        scores: (B, C, H, W) logits, or coarse ones for that size; no gradient flows into them.
        released_for: None for :func:`normalised_entropy`; for :func:`released_entropy` its ``num_classes``.

    Returns:
        classes: (B, H, W) int64.
        uncertainty: (B, H, W) float.
    """
    known = scores.shape[1]
    if is_fused(scores) and released_for is None:
        classes, entropy = read_pixels(scores, "entropy")
        return classes, entropy / _highest_entropy(known)
    if is_fused(scores) and released_for is not None:
        classes, entropy = read_pixels(scores, "released")
        return classes, entropy / known / _released_scale(known, released_for)
    probs = torch.softmax(full_size(scores).detach(), dim=1)
    classes = probs.argmax(dim=1)
    if released_for is None:
        return classes, normalised_entropy(probs)
    return classes, released_entropy(probs, num_classes=released_for)


def extended_labels(ground_truth: Tensor, predicted: Tensor) -> Tensor:
    """(…) int64: ground truth where it is foreground or ignored, the teacher's class where it is background (eq. 2).

    Args:
        ground_truth: (…) integer labels of the current step: 0 background, 255 ignored.
        predicted: (…) int64, the most likely class of the teacher.
    """
    labels = ground_truth.long()
    return torch.where(labels == BACKGROUND, predicted, labels)


def extended_map(ground_truth: Tensor, teacher_probs: Tensor, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Merge ground truth and teacher into one map and its probabilities (UCD, eq. 2 and 9).

    ``M̄ = M`` where M is foreground, ``argmax P`` where M is background;
    ``P̄ = onehot(M)`` where M is foreground, ``[P, 0 … 0]`` elsewhere.

    Args:
        ground_truth: (…) integer labels of the current step: 0 background, 255 ignored.
        teacher_probs: (…, C_old) probabilities of the classes known before, background first.
        num_classes: C, all classes known after this step, background included; C ≥ C_old.

    Returns:
        labels: (…) int64, where ignored pixels stay 255.
        probs: (…, C) in the dtype of ``teacher_probs``; each row sums to 1. Empty input gives empty output.
    """
    old_classes = teacher_probs.shape[-1]
    if teacher_probs.shape[:-1] != ground_truth.shape:
        raise ValueError(
            f"teacher_probs must be ground_truth's shape plus a class axis: got {tuple(teacher_probs.shape)} "
            f"for ground truth {tuple(ground_truth.shape)}"
        )
    if num_classes < old_classes:
        raise ValueError(f"num_classes={num_classes} is smaller than the teacher's {old_classes} classes")
    labels = ground_truth.long()
    foreground = (labels != BACKGROUND) & (labels != IGNORE)
    merged = extended_labels(labels, teacher_probs.argmax(dim=-1))
    padded = F.pad(teacher_probs, (0, num_classes - old_classes))
    one_hot = torch.arange(num_classes, device=labels.device) == labels.unsqueeze(-1)
    return merged, torch.where(foreground.unsqueeze(-1), one_hot.to(padded.dtype), padded)


BINS = 100


def normalised_entropy(probs: Tensor) -> Tensor:
    """``−Σ_c p_c ln p_c / ln C`` per pixel, from 0 (certain) to 1 (all classes equally likely).

    Args:
        probs: (B, C, …) probabilities.

    Returns:
        (B, …); 0 for a single class.
    """
    entropy: Tensor = torch.special.entr(probs).sum(dim=1)
    return entropy / _highest_entropy(probs.shape[1])


def _highest_entropy(classes: int) -> float:
    return max(math.log(classes), 1e-12)


def released_entropy(probs: Tensor, *, num_classes: int) -> Tensor:
    """``−1/K Σ_c p_c ln(p_c + 1e-8) / (ln K · ln C)`` per pixel: the uncertainty in PLOP's released code.

    A mean over the K old classes instead of a sum, and divided by two logarithms: at most 1/(K ln C).

    Args:
        probs: (B, K, …) probabilities.
        num_classes: C, all classes of the step, background included.

    Returns:
        (B, …).
    """
    entropy = -(probs * (probs + 1e-8).log()).mean(dim=1)
    return entropy / _released_scale(probs.shape[1], num_classes)


def _released_scale(old_classes: int, num_classes: int) -> float:
    return math.log(old_classes + 1e-8) * math.log(num_classes)


def class_histogram(values: Tensor, classes: Tensor, *, num_classes: int) -> Tensor:
    """Count values in [0, 1] by class and by bin of width 1/100. Counts of several batches or processes add up.

    Args:
        values: (P,) float.
        classes: (P,) int64 in 0…C−1.
        num_classes: C.

    Returns:
        (C, 100) int64.
    """
    bins = (values * BINS).long().clamp(0, BINS - 1)
    return torch.bincount(classes * BINS + bins, minlength=num_classes * BINS).reshape(num_classes, BINS)


def median_of_histogram(counts: Tensor) -> Tensor:
    """The upper edge of the bin in which half of a class' pixels are reached; 0 for a class without pixels.

    Args:
        counts: (C, 100) int64.

    Returns:
        (C,) float32 in [0, 1].
    """
    total = counts.sum(dim=1, keepdim=True)
    reached = counts.cumsum(dim=1) * 2 >= total
    edge = (reached.int().argmax(dim=1) + 1) / BINS
    return torch.where(total[:, 0] > 0, edge, 0.0)


def released_median(counts: Tensor) -> Tensor:
    """What PLOP's released code takes for the median of a histogram; 0 for a class without pixels.

    It looks for the first bin b with ``r_b ≤ n/2 ≤ r_b + counts_b``, n being the number of pixels and r_b that of those
    below b, and interpolates in it. But for r_b it sums the *indices* of the bins below, not their counts. Where the
    bin that it finds is empty the result is not a number, and no pixel passes. Where it finds none the last bin stands
    in for it: if that is empty too, the result is ∞ for a class of more than 9900 pixels, and −∞ for one of fewer. The
    bin is looked up by rounding down ``b/100·100``, which in floating point is the bin below for b of 29, 57 and 58.

    Args:
        counts: (C, 100) int64.

    Returns:
        (C,) float32, which may be −∞, ∞ or not a number.
    """
    edges = [b / BINS for b in range(BINS)]
    counted = counts[:, [int(edge * BINS) for edge in edges]]
    below = torch.tensor([b * (b - 1) // 2 for b in range(BINS + 1)], device=counts.device)
    half = counts.sum(dim=1, keepdim=True) / 2
    fits = (half >= below[:-1]) & (half <= below[:-1] + counted)
    found = fits.any(dim=1, keepdim=True)
    place = torch.where(found, fits.int().argmax(dim=1, keepdim=True), BINS - 1)
    passed = below[torch.where(found, place, BINS)]
    median = torch.tensor(edges, device=counts.device)[place] + (half - passed) / counted.gather(1, place) * (1 / BINS)
    return torch.where(half > 0, median, 0.0)[:, 0]
