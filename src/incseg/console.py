"""What is said to a person: tables, and how far a long task has come."""

import html
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import rich.console
import rich.table
from rich.progress import Progress


class Console(rich.console.Console):
    """A terminal or a log; what people name (classes, folders, methods) is shown as it is, brackets included."""

    def say(self, text: str) -> None:
        """One line of plain text, never broken: commands and paths can be copied from it."""
        self.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, table: "Table") -> None:
        """A table, as wide as the terminal allows."""
        self.print(table.for_terminal())


LINES = 10  # a log gets about that many


@contextmanager
def progress_of(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Yields ``advance(done, of)``; ``of`` is 0 while unknown."""
    if console.is_terminal:
        with Progress(console=console) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of or None)
        return
    said = -1

    def advance(done: int, of: int) -> None:
        nonlocal said
        tenths = LINES * done // of if of else 0
        if tenths > said:
            said = tenths
            console.say(f"{title}: {100 * done // of if of else 0} %")

    yield advance


@dataclass(frozen=True)
class Table:
    """A title, headers and rows of text; the first column is a name, the others are numbers unless ``prose``."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    prose: bool = False

    def for_terminal(self) -> rich.table.Table:
        """A table for ``console.print``."""
        table = rich.table.Table(
            title=self.title, caption=self.note or None, title_justify="left", caption_justify="left"
        )
        for index, header in enumerate(self.headers):
            is_name = index == 0 and not self.prose  # a name cut in two is hard to find again
            justify: Literal["left", "right"] = "left" if index == 0 or self.prose else "right"
            table.add_column(header, justify=justify, overflow="fold", no_wrap=is_name)
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_html(self) -> str:
        """An HTML table; every cell is escaped."""
        head = "".join(f"<th>{html.escape(text)}</th>" for text in self.headers)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        note = f"<p class='note'>{html.escape(self.note)}</p>" if self.note else ""
        return (
            f"<h2>{html.escape(self.title)}</h2><div class='scroll'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>{note}"
        )


def percent(value: float) -> str:
    """As tables of the field print IoU: 71.5; a missing value is a dash."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean, and with several seeds the standard deviation beside it; a dash of nothing."""
    if not values:
        return "–"
    average = sum(values) / len(values)
    if len(values) == 1 or math.isnan(average):
        return percent(average)
    spread = math.sqrt(sum((value - average) ** 2 for value in values) / (len(values) - 1))
    return f"{percent(average)} ± {percent(spread)}"
