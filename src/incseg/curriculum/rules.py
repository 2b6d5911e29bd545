"""The rules of a step: which images it may see, and under which labels.

Every setting that decides on labels (``data.has_background``, ``data.void``, ``data.scored_void``, ``data.future``,
``data.background``) or on the scored images (``data.score_on``) is read here and nowhere else.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from incseg.config import DataConfig
from incseg.datasets.saliency import BIT, SALIENT_IDS
from incseg.datasets.source import Disjoint
from incseg.protocol import BACKGROUND, IGNORE, Setting, Step
from incseg.seeding import seed_from

Presence = Sequence[frozenset[int]]  # per image, the dataset ids it shows
DatasetIds = Sequence[int] | Mapping[int, int]  # channel -> dataset id


def images_per_step(
    presence: Presence, steps: Sequence[Step], setting: Setting, order: DatasetIds, disjoint: Disjoint = "plain"
) -> list[list[int]]:
    """Indices of the images each step learns from.

    In the disjoint and sequential settings of a dataset marked ``disjoint="balanced"``, whose images show too many
    classes for the plain rule, they are shared out by :func:`balanced_partition`, in the partitioned setting by
    :func:`random_partition`; otherwise :func:`training_images` chooses them.
    """
    if setting is Setting.PARTITIONED:
        return random_partition(presence, steps, order)
    if setting.excludes_future and disjoint == "balanced":
        return balanced_partition(presence, steps, order)
    return [training_images(presence, step, setting, order) for step in steps]


def training_images(presence: Presence, step: Step, setting: Setting, order: DatasetIds) -> list[int]:
    """Indices of the images a step learns from by the plain rule, in the dataset's order.

    Overlapped: images that show at least one of the step's new classes. Disjoint and sequential: of those, the ones
    that show no class of a later step.

    Args:
        presence: per image, the dataset ids it shows.
        step: in channels.
        setting: any but partitioned.
        order: dataset id of each channel.
    """
    new = {order[channel] for channel in step.new}
    future = {order[channel] for channel in step.future} if setting.excludes_future else set()
    return [index for index, shown in enumerate(presence) if shown & new and not shown & future]


def balanced_partition(presence: Presence, steps: Sequence[Step], order: DatasetIds) -> list[list[int]]:
    """Give every image to exactly one step, so that each class keeps a fair share of its images in its own step.

    The rule of the notebook ADE-Split in MiB's repository. Images are taken by the lowest dataset id they show, then by
    index; each goes to the step of its class with the highest

        120 (1 − given_c / total_c) + 1 / (total_c / Σ_{c' shown} total_c'),

    and to the lowest id on a tie. total_c counts the images that show c, given_c those of them already in c's own step.
    """
    step_of = {order[channel]: step.index for step in steps for channel in step.new}
    foreground = [sorted(shown & step_of.keys()) for shown in presence]
    total = Counter(dataset_id for shown in foreground for dataset_id in shown)
    given: Counter[int] = Counter()
    chosen: list[list[int]] = [[] for _ in steps]
    for index in sorted((i for i, shown in enumerate(foreground) if shown), key=lambda i: (foreground[i][0], i)):
        shown = foreground[index]
        together = sum(total[c] for c in shown)
        # Written as in the notebook, so that ties are the same: 1 / (a / b) is not always b / a.
        scores = [(1.0 - given[c] / total[c]) * 120 + 1.0 / (total[c] / together) for c in shown]
        step = step_of[shown[scores.index(max(scores))]]
        chosen[step].append(index)
        given.update(c for c in shown if step_of[c] == step)
    return [sorted(indices) for indices in chosen]


def random_partition(presence: Presence, steps: Sequence[Step], order: DatasetIds) -> list[list[int]]:
    """Give every image to the step of one of the classes it shows, drawn by chance (Kwak et al., 2024).

    The draw depends on the image's index alone: in every task and class order, an image stands for the same class.
    """
    step_of = {order[channel]: step.index for step in steps for channel in step.new}
    chosen: list[list[int]] = [[] for _ in steps]
    for index, shown in enumerate(presence):
        foreground = sorted(shown & step_of.keys())
        if foreground:
            drawn = foreground[seed_from("partitioned", index) % len(foreground)]
            chosen[step_of[drawn]].append(index)
    return chosen


def sampling_weights(shown: Sequence[frozenset[int]], data: DataConfig) -> tuple[float, ...] | None:
    """How often each training image is to be drawn, in proportion; None: each once per epoch.

    Balanced, an image weighs ``Σ_{c shown} 1/n_c`` with n_c the images that show c, so every class brings the same
    weight in all. An image that shows none of the classes weighs as much as the least of the others.
    """
    if data.sampling == "uniform":
        return None
    images = Counter(channel for channels in shown for channel in channels)
    weights = [sum(1 / images[channel] for channel in channels) for channels in shown]
    least = min((weight for weight in weights if weight > 0), default=1.0)
    return tuple(weight or least for weight in weights)


def images_showing_seen(presence: Presence, step: Step, order: DatasetIds) -> list[int]:
    """Indices of the images that show at least one class known after this step."""
    seen = {order[channel] for channel in step.seen}
    return [index for index, shown in enumerate(presence) if shown & seen]


def images_showing_most(presence: Presence, number: int) -> list[int]:
    """Indices of the images that show the most classes, in the dataset's order among equals."""
    return sorted(range(len(presence)), key=lambda index: (-len(presence[index]), index))[:number]


def scored_images(presence: Presence, step: Step, order: DatasetIds, data: DataConfig) -> list[int]:
    """Indices of the validation images scored after a step: all, or those that show a class known by then."""
    return list(range(len(presence))) if data.score_on == "all" else images_showing_seen(presence, step, order)


def training_table(step: Step, order: DatasetIds, data: DataConfig, *, keep_old: bool = False) -> Tensor:
    """Dataset id → channel, as a step learns it: its classes are labelled, everything else is background.

    Args:
        step: in channels.
        order: dataset id of each channel.
        data: ``void`` says what the dataset's 255 becomes. Where the data has no background, 255 and the dataset's 0
            are ignored; background are then the classes that the step does not label, and only these. With
            ``saliency``, ids that also say salient have the label of those that do not.
        keep_old: label the old classes too, as joint training may.

    Returns:
        (256,) int64: labels are ``table[mask]``.
    """
    labelled = step.seen if keep_old else step.new + step.labelled_old
    is_ignored = data.void == "ignore" or not data.has_background
    table = _label_table(order, labelled, elsewhere=BACKGROUND, void=IGNORE if is_ignored else BACKGROUND)
    table[order[BACKGROUND]] = BACKGROUND if data.has_background else IGNORE
    if data.saliency is not None:
        salient = torch.tensor(SALIENT_IDS)
        table[salient] = table[salient ^ BIT]
    return table


def scoring_table(step: Step, order: DatasetIds, data: DataConfig) -> Tensor:
    """Dataset id → channel, as a step is scored: every class seen so far is labelled.

    Args:
        step: in channels.
        order: dataset id of each channel.
        data: ``future`` says what classes still to be learnt are, ``scored_void`` what the dataset's 255 is, and
            ``background`` whether all that is background after that is scored, which it never is where there is none.

    Returns:
        (256,) int64: labels are ``table[mask]``.
    """
    elsewhere = BACKGROUND if data.future == "background" else IGNORE
    table = _label_table(order, step.seen, elsewhere, void=IGNORE if data.scored_void == "ignore" else BACKGROUND)
    table[order[BACKGROUND]] = BACKGROUND
    if data.background == "ignore" or not data.has_background:
        table[table == BACKGROUND] = IGNORE
    return table


def _label_table(order: DatasetIds, labelled: Sequence[int], elsewhere: int, void: int) -> Tensor:
    """(256,) int64, dataset id → channel: the labelled channels, ``void`` for 255, ``elsewhere`` for all others."""
    table = torch.full((IGNORE + 1,), elsewhere, dtype=torch.int64)
    for channel in labelled:
        table[order[channel]] = channel
    table[IGNORE] = void
    return table
