"""What is said to a person: tables, and how far a long task has come."""

import html
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from json import dumps as json_text
from typing import Any, Literal

import rich.console
import rich.table
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import RenderableType
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text


class Console(rich.console.Console):
    """A terminal or a log; what people name (classes, folders, methods) is shown as it is, brackets included."""

    results_only = False
    """Whether only results and warnings are said, by all consoles; see :func:`quietly`."""

    document: dict[str, Any] | None = None
    """What a program that asked for JSON reads at the end; None: a person reads. See :func:`for_programs`."""
    in_lines = False
    """Whether all that goes to stderr is JSON, one object per line."""

    def say(self, text: str) -> None:
        """One line of plain text, never broken: commands and paths can be copied from it."""
        if self.is_for_programs:
            self.emit("message", text=text)
        else:
            self.print(Text(text), soft_wrap=True)

    def mention(self, text: str) -> None:
        """A line on how the work goes, which ``--quiet`` leaves out."""
        if not self.results_only:
            self.say(text)

    def show(self, table: "Table") -> None:
        """A table between its title and its note."""
        if Console.document is not None:
            Console.document["tables"].append(table.to_json())
        if self.is_for_programs:
            return
        self.print(Text(table.title, style="table.title"))
        for index, part in enumerate(table.for_terminal(self.width)):
            self.print(*([""] if index else []), part, sep="\n")
        if table.note:
            self.print(Text(table.note, style="table.caption"))

    @property
    def is_for_programs(self) -> bool:
        """Whether what is said here is to be JSON."""
        return Console.in_lines and (self.stderr or Console.document is not None)

    def emit(self, event: str, **facts: object) -> None:
        """One line of JSON on stderr, for a program that follows the work."""
        print(as_json({"event": event, **facts}), file=sys.stderr, flush=True)


@contextmanager
def for_programs(*, json: bool, lines: bool) -> Iterator[dict[str, Any]]:
    """Inside, nothing but the caller's document goes to stdout (``json``), and stderr holds JSON lines (``lines``).

    Yields the document: what :func:`publish` was told, and every table shown.
    """
    before = Console.document, Console.in_lines
    document: dict[str, Any] = {"result": {}, "tables": []}
    Console.document, Console.in_lines = document if json else None, lines
    try:
        with redirect_stdout(sys.stderr) if json else nullcontext():
            yield document
    finally:
        Console.document, Console.in_lines = before


def publish(**facts: object) -> None:
    """Say what a command has found or written to a program that asked for JSON; people are told in sentences."""
    if Console.document is not None:
        Console.document["result"] |= facts


def as_json(value: object) -> str:
    """One line. Paths become text, and JSON has no NaN: it becomes null."""

    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return {str(key): plain(each) for key, each in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(each) for each in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        return value if value is None or isinstance(value, (str, int, bool)) else str(value)

    return json_text(plain(value), ensure_ascii=False)


@contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """Inside, nothing is said of how far the work has come."""
    before, Console.results_only = Console.results_only, quiet
    try:
        yield
    finally:
        Console.results_only = before


def is_rank_zero() -> bool:
    """Whether this is the first of several processes, the only one that prints; launchers give each its rank."""
    ranks = ("RANK", "NODE_RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


LINES = 10  # a log gets about that many
WIDEST = 78  # columns of a progress bar: a window narrower than what is drawn breaks its lines, which then stay behind


class ProgressBar(Progress):
    """A bar of one line, however narrow the window is or becomes."""

    def __init__(self, console: Console, *columns: ProgressColumn):
        title = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        super().__init__(title, BarColumn(), *columns, console=console)

    def get_renderable(self) -> RenderableType:
        """The line, no wider than it can stay."""
        return Constrain(super().get_renderable(), WIDEST)


def unbroken() -> Column:
    """The column of a bar whose text is never continued on a second line."""
    return Column(no_wrap=True)


@contextmanager
def progress_of(title: str, console: Console, *, patience: float = 0.0) -> Iterator[Callable[[int, int], None]]:
    """Yields ``advance(done, of)``; ``of`` is 0 while unknown. A log gets no line in the first ``patience`` seconds."""
    if console.results_only:
        yield lambda done, of: None  # noqa: ARG005
        return
    if Console.in_lines:
        percents: set[int] = set()

        def emit(done: int, of: int) -> None:
            part = 100 * done // of if of else 0
            if part not in percents:
                percents.add(part)
                console.emit("progress", title=title, done=done, of=of or None)

        yield emit
        return
    if console.is_terminal:
        with ProgressBar(console, TaskProgressColumn(), TimeRemainingColumn(table_column=unbroken())) as bar:
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

    def for_terminal(self, width: int) -> list[rich.table.Table]:
        """For ``Console.show``: one table, or where no word would be whole in it, several below each other."""
        parts = self._parts(width)
        boxed = len(parts) == 1 and self._column_widths(self._room(width, boxed=True)) is not None
        return [part._in_one(width, boxed) for part in parts]

    def _parts(self, width: int) -> list["Table"]:
        """As many columns at a time as fit beside the first, with which every part begins."""
        chosen: list[list[int]] = [[]]
        for column in range(1, len(self.headers)):
            fits = self._with_columns([*chosen[-1], column])._fits(width)
            chosen = [*chosen[:-1], [*chosen[-1], column]] if fits or not chosen[-1] else [*chosen, [column]]
        return [self._with_columns(columns) for columns in chosen]

    def _with_columns(self, columns: Sequence[int]) -> "Table":
        """The first column, and those."""
        headers, *rows = ([row[0], *(row[index] for index in columns)] for row in (self.headers, *self.rows))
        return replace(self, headers=headers, rows=rows)

    def _fits(self, width: int) -> bool:
        return self._column_widths(self._room(width, boxed=False)) is not None

    def _room(self, width: int, boxed: bool) -> int:
        """What the columns have, without the lines or the space between them."""
        count = len(self.headers)
        return width - 3 * count - 1 if boxed else width - 2 * (count - 1)

    def _in_one(self, width: int, boxed: bool) -> rich.table.Table:
        """Headers and rows; what stands in them is text, not rich's markup."""
        light = rich.table.Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        table, widths = rich.table.Table() if boxed else light, self._column_widths(self._room(width, boxed))
        for index, header in enumerate(self.headers):
            justify: Literal["left", "right"] = "left" if index == 0 or self.prose else "right"
            fitting = None if widths is None else widths[index]
            table.add_column(Text(header), justify=justify, overflow="fold", width=fitting)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def _column_widths(self, width: int) -> list[int] | None:
        """Widths that break lines only between words, and numbers nowhere; None if there is no room for that."""
        columns = list(zip(self.headers, *self.rows, strict=True))
        widest = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
        least = [max(map(cell_len, self._pieces(column, index == 0))) for index, column in enumerate(columns)]
        if 2 * widest[0] <= width:
            least[0] = widest[0]  # a name cut in two is hard to find again
        room, wish = width - sum(least), sum(widest) - sum(least)
        if room < 0:
            return None
        share = min(1, room / wish) if wish else 1
        return [low + int(share * (high - low)) for low, high in zip(least, widest, strict=True)]

    def _pieces(self, column: Sequence[str], are_names: bool) -> list[str]:
        """What must stay whole: the words of a header, of names and of prose, and any number with its spread."""
        header, *cells = column
        is_text = are_names or self.prose
        broken = (header, *cells) if is_text else (header,)
        return ["", *(word for text in broken for word in text.split()), *([] if is_text else cells)]

    def to_json(self) -> dict[str, Any]:
        """Title, note, and each row by its headers."""
        rows = [dict(zip(self.headers, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "note": self.note}

    def to_markdown(self) -> str:
        """A table of Markdown below its title in bold, its note below it; numbers stand at the right."""

        def line(cells: Sequence[str]) -> str:
            return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), '<br>') for cell in cells)} |"

        rule = line(["---" if index == 0 or self.prose else "---:" for index in range(len(self.headers))])
        note = f"\n\n{self.note.replace(chr(10), '<br>' + chr(10))}" if self.note else ""
        return "\n".join([f"**{self.title}**\n", line(self.headers), rule, *map(line, self.rows)]) + note

    def to_html(self) -> str:
        """An HTML table; every cell is escaped."""
        head = "".join(f"<th>{html.escape(text)}</th>" for text in self.headers)
        body = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.rows)
        note = f"<p class='note'>{html.escape(self.note).replace(chr(10), '<br>')}</p>" if self.note else ""
        table = f"<table class='stacking'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<h2>{html.escape(self.title)}</h2><div class='scroll'>{table}</div>{note}"

    def _html_cells(self, row: Sequence[str]) -> str:
        """Each cell knows its header: a narrow screen shows a row as a list."""
        cells = zip(self.headers, row, strict=True)
        return "".join(f'<td data-label="{html.escape(header)}">{html.escape(text)}</td>' for header, text in cells)


def percent(value: float) -> str:
    """As tables of the field print IoU: 71.5; a missing value is a dash."""
    return "–" if math.isnan(value) else decimal(100 * value, 1)


def decimal(value: float, digits: int) -> str:
    """A number with that many digits after the point; what rounds to zero has no sign.

    >>> decimal(-0.04, 1), decimal(-0.06, 1)
    ('0.0', '-0.1')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}"


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean, and with several seeds the standard deviation beside it; a dash if there are none."""
    if not values:
        return "–"
    average = sum(values) / len(values)
    if len(values) == 1 or math.isnan(average):
        return percent(average)
    spread = math.sqrt(sum((value - average) ** 2 for value in values) / (len(values) - 1))
    return f"{percent(average)} ± {percent(spread)}"
