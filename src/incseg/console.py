"""What is said to a person: tables, and how far a long task has come."""

import html
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import rich.console
import rich.table
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.progress import Progress, TextColumn
from rich.text import Text


class Console(rich.console.Console):
    """A terminal or a log; what people name (classes, folders, methods) is shown as it is, brackets included."""

    def say(self, text: str) -> None:
        """One line of plain text, never broken: commands and paths can be copied from it."""
        self.print(Text(text), soft_wrap=True)

    def show(self, table: "Table") -> None:
        """A table between its title and its note."""
        self.print(Text(table.title, style="table.title"))
        self.print(table.for_terminal(self.width))
        if table.note:
            self.print(Text(table.note, style="table.caption"))


def is_rank_zero() -> bool:
    """Whether this is the first of several processes, the only one that prints; launchers give each its rank."""
    ranks = ("RANK", "NODE_RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


LINES = 10  # a log gets about that many


@contextmanager
def progress_of(title: str, console: Console, *, patience: float = 0.0) -> Iterator[Callable[[int, int], None]]:
    """Yields ``advance(done, of)``; ``of`` is 0 while unknown. A log gets no line in the first ``patience`` seconds."""
    if console.is_terminal:
        _, *columns = Progress.get_default_columns()
        with Progress(TextColumn("{task.description}", markup=False), *columns, console=console) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of or None)
        return
    said, began = -1, time.monotonic()

    def advance(done: int, of: int) -> None:
        nonlocal said
        tenths = LINES * done // of if of else 0
        if tenths > said and time.monotonic() - began >= patience:
            said = tenths
            console.say(f"{title}: {100 * done // of if of else 0} %")

    yield advance


@dataclass(frozen=True)
class Table:
    """A title, headers, rows of text, a note; the first column is a name, the others are numbers unless ``prose``."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    prose: bool = False

    def for_terminal(self, width: int) -> rich.table.Table:
        """Headers and rows for ``Console.show``; what stands in them is text, not rich's markup."""
        count = len(self.headers)
        table, widths = rich.table.Table(), self._column_widths(width - 3 * count - 1)
        if widths is None:  # without lines between the columns it may fit
            table = rich.table.Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
            widths = self._column_widths(width - 2 * (count - 1))
        for index, header in enumerate(self.headers):
            justify: Literal["left", "right"] = "left" if index == 0 or self.prose else "right"
            fitting = None if widths is None else widths[index]
            table.add_column(Text(header), justify=justify, overflow="fold", width=fitting)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def _column_widths(self, width: int) -> list[int] | None:
        """Widths that break lines only between words; None if there is no room for that. rich would break words."""
        columns = list(zip(self.headers, *self.rows, strict=True))
        widest = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
        least = [max(cell_len(word) for cell in column for word in ("", *cell.split())) for column in columns]
        least[0] = widest[0]  # a name cut in two is hard to find again
        room, wish = width - sum(least), sum(widest) - sum(least)
        if room < 0:
            return None
        share = min(1, room / wish) if wish else 1
        return [low + int(share * (high - low)) for low, high in zip(least, widest, strict=True)]

    def to_html(self) -> str:
        """An HTML table; every cell is escaped."""
        head = "".join(f"<th>{html.escape(text)}</th>" for text in self.headers)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        note = f"<p class='note'>{html.escape(self.note).replace(chr(10), '<br>')}</p>" if self.note else ""
        return (
            f"<h2>{html.escape(self.title)}</h2><div class='scroll'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>{note}"
        )


def percent(value: float) -> str:
    """As tables of the field print IoU: 71.5; a missing value is a dash."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean, and with several seeds the standard deviation beside it; a dash if there are none."""
    if not values:
        return "–"
    average = sum(values) / len(values)
    if len(values) == 1 or math.isnan(average):
        return percent(average)
    spread = math.sqrt(sum((value - average) ** 2 for value in values) / (len(values) - 1))
    return f"{percent(average)} ± {percent(spread)}"
