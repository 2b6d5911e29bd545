"""Images that cannot be read: with ``--data.on-error skip`` they are left out of a step, counted and listed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from incseg.errors import Note


@dataclass
class LeftOut:
    """What could not be read in one step, a sentence for each file: in training, and in scoring."""

    skips: bool = False
    """Whether to leave such images out; else they are refused where they are met."""
    say: Callable[[str], None] = lambda _: None
    training: set[str] = field(default_factory=set)
    scoring: set[str] = field(default_factory=set)

    @property
    def from_training(self) -> Note | None:
        """Hears of images that are replaced in training; None: refuse them."""
        return self._note(self.training)

    @property
    def from_scoring(self) -> Note | None:
        """Hears of images that are not scored; None: refuse them."""
        return self._note(self.scoring)

    def _note(self, found: set[str]) -> Note | None:
        def note(sentence: str) -> None:
            if sentence not in found:
                self.say(f"left out: {sentence}")
            found.add(sentence)

        return note if self.skips else None

    def share(self, processes: int) -> None:
        """Let every process know what any of them has met."""
        if not self.skips or processes == 1:
            return
        known: list[Any] = [None] * processes
        torch.distributed.all_gather_object(known, (self.training, self.scoring))
        for training, scoring in known:
            self.training |= training
            self.scoring |= scoring

    def entry(self) -> dict[str, Any]:
        """What the scores of the step say of it."""
        lists = {"training": sorted(self.training), "scoring": sorted(self.scoring)}
        return {"unreadable": lists} if self.skips else {}


def over_all(scanned: Iterable[str], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every file that a run could not read, once: when the masks were scanned, and in any step."""
    met = [text for entry in entries for texts in entry.get("unreadable", {}).values() for text in texts]
    return sorted({*scanned, *met})
