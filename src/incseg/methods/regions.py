"""Which pixels take part, by what their label means to a step: old classes, new classes, background."""

import torch
from torch import Tensor

from incseg.errors import InputError
from incseg.protocol import BACKGROUND, IGNORE, Step

REGIONS = ("old", "new", "background")
OUTSIDE = -1  # the label of a pixel that takes no part


def parse_regions(text: str) -> tuple[str, ...]:
    """``"old+new"`` → ``("old", "new")``."""
    regions = tuple(text.split("+"))
    if not set(regions) <= set(REGIONS):
        raise InputError(f"'{text}' does not say which pixels take part: write a sum of {', '.join(REGIONS)}.")
    return regions


def within(labels: Tensor, regions: str, step: Step) -> Tensor:
    """Labels where they belong to one of the regions, −1 elsewhere; ignored pixels never do.

    Args:
        labels: (…) int64 channels.
        regions: a sum of ``old``, ``new`` and ``background``.
        step: what is old and new.
    """
    is_background, is_ignored = labels == BACKGROUND, labels == IGNORE
    is_old = (labels < step.old_classes) & ~is_background
    members = {"old": is_old, "new": ~(is_old | is_background | is_ignored), "background": is_background}
    chosen = torch.stack([members[name] for name in parse_regions(regions)]).any(dim=0)
    return torch.where(chosen, labels, OUTSIDE)
