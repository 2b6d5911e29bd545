"""What a step may see: which images, and under which labels."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from incseg.datasets.source import Disjoint
from incseg.protocol import BACKGROUND, IGNORE, Setting, Step

Void = Literal["ignore", "background"]
Future = Literal["background", "ignore"]
Background = Literal["score", "ignore"]


def images_per_step(
    presence: Sequence[frozenset[int]],
    steps: Sequence[Step],
    setting: Setting,
    order: Sequence[int],
    disjoint: Disjoint = "plain",
) -> list[list[int]]:
    """Indices of the images each step learns from: by the plain rule of :func:`training_images`.

    Except in the disjoint setting of a dataset whose images show too many classes for that (``disjoint="balanced"``),
    where it is :func:`balanced_partition`.
    """
    if setting is Setting.DISJOINT and disjoint == "balanced":
        return balanced_partition(presence, steps, order)
    return [training_images(presence, step, setting, order) for step in steps]


def training_images(
    presence: Sequence[frozenset[int]], step: Step, setting: Setting, order: Sequence[int]
) -> list[int]:
    """Indices of the images a step learns from by the plain rule, in the dataset's order.

    Overlapped: at least one of the step's new classes is shown. Disjoint: and no class of a later step.

    Args:
        presence: per image, the dataset ids it shows.
        step: in channels.
        setting: overlapped or disjoint.
        order: dataset id of each channel.
    """
    new = {order[channel] for channel in step.new}
    future = {order[channel] for channel in step.future} if setting is Setting.DISJOINT else set()
    return [index for index, shown in enumerate(presence) if shown & new and not shown & future]


def balanced_partition(
    presence: Sequence[frozenset[int]], steps: Sequence[Step], order: Sequence[int]
) -> list[list[int]]:
    """Give every image to exactly one step, so that each class keeps a fair share of its images in its own step.

    The rule of the notebook ADE-Split in MiB's repository. Images come up by the lowest dataset id they show, then by
    index; each goes to the step of its class with the highest

        120 (1 − given_c / total_c) + 1 / (total_c / Σ_{c' shown} total_c'),

    the lowest id among equals. total_c counts the images that show c, given_c those of them already in c's own step.
    """
    step_of = {order[channel]: step.index for step in steps for channel in step.new}
    foreground = [sorted(shown & step_of.keys()) for shown in presence]
    total = Counter(dataset_id for shown in foreground for dataset_id in shown)
    given: Counter[int] = Counter()
    chosen: list[list[int]] = [[] for _ in steps]
    for index in sorted((i for i, shown in enumerate(foreground) if shown), key=lambda i: (foreground[i][0], i)):
        shown = foreground[index]
        together = sum(total[c] for c in shown)
        # Spelt as in the notebook, so that ties fall alike: 1 / (a / b) is not always b / a.
        scores = [(1.0 - given[c] / total[c]) * 120 + 1.0 / (total[c] / together) for c in shown]
        step = step_of[shown[scores.index(max(scores))]]
        chosen[step].append(index)
        given.update(c for c in shown if step_of[c] == step)
    return [sorted(indices) for indices in chosen]


def scored_images(presence: Sequence[frozenset[int]], step: Step, order: Sequence[int]) -> list[int]:
    """Indices of the validation images that show at least one class known after this step."""
    seen = {order[channel] for channel in step.seen}
    return [index for index, shown in enumerate(presence) if shown & seen]


def training_table(step: Step, order: Sequence[int], void: Void = "ignore", *, keep_old: bool = False) -> Tensor:
    """Dataset id → channel, as a step learns it: only its new classes are labelled, all else is background.

    Args:
        step: in channels.
        order: dataset id of each channel.
        void: what the dataset's 255 becomes: ``ignore`` (as in the paper) or ``background`` (as MiB does on VOC).
        keep_old: label the old classes too, as joint training may.

    Returns:
        (256,) int64: labels are ``table[mask]``.
    """
    labelled = step.seen if keep_old else step.new
    return _table(order, labelled, elsewhere=BACKGROUND, void=IGNORE if void == "ignore" else BACKGROUND)


def scoring_table(
    step: Step,
    order: Sequence[int],
    future: Future = "background",
    void: Void = "ignore",
    background: Background = "score",
) -> Tensor:
    """Dataset id → channel, as a step is scored: every class seen so far is labelled.

    Args:
        step: in channels.
        order: dataset id of each channel.
        future: classes still to come count as background, as in PLOP and UCD, or are left out, as in MiB.
        void: the dataset's 255 is left out, or is background (as in UCD on Cityscapes).
        background: whatever is background after that is scored, or left out (as in MiB on ADE20K).

    Returns:
        (256,) int64: labels are ``table[mask]``.
    """
    elsewhere = BACKGROUND if future == "background" else IGNORE
    table = _table(order, step.seen, elsewhere, void=IGNORE if void == "ignore" else BACKGROUND)
    table[order[BACKGROUND]] = BACKGROUND
    if background == "ignore":
        table[table == BACKGROUND] = IGNORE
    return table


def _table(order: Sequence[int], labelled: Sequence[int], elsewhere: int, void: int) -> Tensor:
    table = torch.full((IGNORE + 1,), elsewhere, dtype=torch.int64)
    for channel in labelled:
        table[order[channel]] = channel
    table[IGNORE] = void
    return table
