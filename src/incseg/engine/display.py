"""What a person sees during training: a progress bar in a terminal, a few plain lines anywhere else."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from rich.console import Group
from rich.constrain import Constrain
from rich.live import Live
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from incseg.console import WIDEST, Console, ProgressBar, decimal, unbroken

LINES = 10  # per step, at most, where there is no terminal


@dataclass
class Status:
    """How far a run is, and how that is written."""

    title: str
    last_step: int
    step: int = 0
    iterations: int = 0
    per_epoch: int = 1
    done: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)
    scored: str = ""

    @property
    def epochs(self) -> int:
        """Epochs in the step."""
        return self.iterations // self.per_epoch

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration, from 1."""
        return max(1, -(-self.done // self.per_epoch))

    @property
    def place(self) -> str:
        """Which step and epoch."""
        return f"{self.title} · step {self.step}/{self.last_step} · epoch {self.epoch}/{self.epochs}"

    @property
    def numbers(self) -> str:
        """The loss terms, and the latest mIoU with the step it belongs to."""
        losses = "  ".join(f"{name} {decimal(value, 3)}" for name, value in self.losses.items())
        return " · ".join(filter(None, (losses, self.scored)))


class Display(Protocol):
    """Shows a status while a step is trained."""

    def begin(self, status: Status) -> None:
        """A step begins or resumes."""

    def update(self, status: Status) -> None:
        """An iteration is done."""

    def end(self) -> None:
        """The step ends, also by an error."""


class LiveDisplay:
    """A bar with the remaining time, and below it the numbers; redrawn in place."""

    def __init__(self, console: Console):
        self._console = console
        self._live: Live | None = None

    def begin(self, status: Status) -> None:
        """Draw the bar."""
        self._bar = ProgressBar(
            self._console,
            MofNCompleteColumn(table_column=unbroken()),
            TextColumn("ETA"),
            TimeRemainingColumn(table_column=unbroken()),
        )
        self._task = self._bar.add_task(status.place, total=status.iterations, completed=status.done)
        self._numbers = Text(status.numbers, style="dim", no_wrap=True, overflow="ellipsis")
        lines = Group(self._bar, Constrain(self._numbers, WIDEST))
        self._live = Live(lines, console=self._console, refresh_per_second=4)
        self._live.start()

    def update(self, status: Status) -> None:
        """Move the bar and change the numbers."""
        self._bar.update(self._task, completed=status.done, description=status.place)
        self._numbers.plain = status.numbers

    def end(self) -> None:
        """Leave the last state behind."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class PlainDisplay:
    """A line when a step begins and at the end of epochs, at most ``LINES`` per step."""

    def __init__(self, console: Console):
        self._console = console
        self._began = (0.0, 0)

    def begin(self, status: Status) -> None:
        """Print where it begins."""
        self._began = (time.monotonic(), status.done)
        self._say(f"{status.place} · iteration {status.done} of {status.iterations}")

    def update(self, status: Status) -> None:
        """Print the numbers at the end of every epoch, or of every few if there are many."""
        every = status.per_epoch * -(-status.epochs // LINES)
        if status.done % every == 0 or status.done == status.iterations:
            self._say(" · ".join(filter(None, (status.place, status.numbers, f"ETA {self._left(status)}"))))

    def end(self) -> None:
        """Nothing to clear away."""

    def _left(self, status: Status) -> timedelta:
        began, start = self._began
        pace = (time.monotonic() - began) / max(1, status.done - start)
        return timedelta(seconds=round(pace * (status.iterations - status.done)))

    def _say(self, text: str) -> None:
        self._console.mention(text)


class LinesDisplay:
    """JSON lines for a program: when a step begins, and at every percent of it."""

    def __init__(self, console: Console):
        self._console = console

    def begin(self, status: Status) -> None:
        """Where it begins."""
        self._emit(status)

    def update(self, status: Status) -> None:
        """How far it is, about a hundred times per step."""
        if status.done == status.iterations or status.done % max(1, status.iterations // 100) == 0:
            self._emit(status)

    def end(self) -> None:
        """Nothing to clear away."""

    def _emit(self, status: Status) -> None:
        place = {"step": status.step, "last_step": status.last_step, "epoch": status.epoch, "epochs": status.epochs}
        self._console.emit(
            "training", title=status.title, **place, done=status.done, of=status.iterations, losses=status.losses
        )


def display_for(console: Console) -> Display:
    """A bar for a terminal, lines for anything else; none of these lines is said where it is to be quiet."""
    if console.in_lines and not console.results_only:
        return LinesDisplay(console)
    return LiveDisplay(console) if console.is_terminal and not console.results_only else PlainDisplay(console)
