"""What several runs at once say last, while they are in training."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.text import Text

from incseg.console import Console

TAIL = 4096  # bytes at the end of a log, in which its last line lies


class LatestLines:
    """The last line of each log, redrawn in place below what is said; nothing where there is no terminal."""

    def __init__(self, console: Console):
        shown = console.is_terminal and not console.results_only and not console.in_lines
        self._live = Live(console=console, refresh_per_second=4, transient=True) if shown else None

    def __enter__(self) -> "LatestLines":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, logs: Sequence[Path]) -> None:
        """One line for each of these logs that says something already."""
        if self._live is not None:
            lines = (last_line(log) for log in logs)
            self._live.update(Group(*(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines)))


def last_line(log: Path) -> str:
    """The last line that is not blank; empty if there is none."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
