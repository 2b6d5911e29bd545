"""What a step may see: which images, and under which labels."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from incseg.protocol import BACKGROUND, IGNORE, Setting, Step

Void = Literal["ignore", "background"]
Future = Literal["background", "ignore"]


def training_images(
    presence: Sequence[frozenset[int]], step: Step, setting: Setting, order: Sequence[int]
) -> list[int]:
    """Indices of the images a step learns from, in the dataset's order.

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


def scoring_table(step: Step, order: Sequence[int], future: Future = "background") -> Tensor:
    """Dataset id → channel, as a step is scored: every class seen so far is labelled.

    Classes still to come count as background, as in PLOP and UCD, or are left out (``ignore``), as in MiB.
    """
    table = _table(order, step.seen, elsewhere=BACKGROUND if future == "background" else IGNORE, void=IGNORE)
    table[order[BACKGROUND]] = BACKGROUND
    return table


def _table(order: Sequence[int], labelled: Sequence[int], elsewhere: int, void: int) -> Tensor:
    table = torch.full((IGNORE + 1,), elsewhere, dtype=torch.int64)
    for channel in labelled:
        table[order[channel]] = channel
    table[IGNORE] = void
    return table
