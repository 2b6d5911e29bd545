"""Ours beside the paper's: the same groups of classes, counted as the paper counts them."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from incseg.config import RunConfig, flat_settings, load_recipe, merge
from incseg.console import Table, mean_and_spread
from incseg.metrics import nan_if_none
from incseg.paper import EVALUATION, Block, Group, Row, read_tables
from incseg.paper import Table as PaperTable
from incseg.run_folder import Run


@dataclass(frozen=True)
class Cell:
    """One number of the paper and what our runs say."""

    heading: str
    ours: tuple[float, ...]
    """One fraction per run."""
    paper: float
    """Percent, as printed; NaN where there is none."""

    @property
    def difference(self) -> float:
        """Our mean minus the paper's number, in points."""
        return 100 * statistics.fmean(self.ours) - self.paper if self.ours else math.nan


@dataclass(frozen=True)
class Line:
    """A row of the paper, the runs that repeat it, and its numbers for one protocol."""

    row: Row
    runs: Sequence[Run]
    cells: Sequence[Cell]

    @property
    def has_numbers(self) -> bool:
        """Whether the paper has any for it."""
        return not all(math.isnan(cell.paper) for cell in self.cells)


Outcome = Sequence[tuple[Block, Sequence[Line]]]
"""Per protocol, every chosen row with what our runs say."""


def compare(table: PaperTable, block: Block, runs: Mapping[str, Sequence[Run]]) -> list[Line]:
    """Rows of a protocol's block with the runs given for them, by the row's name.

    Background is counted in columns of its own: beside all classes always, beside the first ones where a row of the
    paper counts it there. So each of the paper's numbers stands where ours is counted alike.
    """
    rows = [row for row in table.rows if row.name in runs]
    columns = list(_columns(rows, block))
    return [Line(row, runs[row.name], [_cell(table, row, block, c, runs[row.name]) for c in columns]) for row in rows]


Column = tuple[str, Group | None, bool]  # the paper's heading, its classes if it is a score, with background or not


def _columns(rows: Sequence[Row], block: Block) -> Iterator[Column]:
    groups = {group.label: group for group in block.scores}
    for label in block.groups:
        group = groups.get(label)
        yield label, group, False
        if group is not None and group.first == 1:
            is_all = group.last == block.num_foreground
            if is_all or any(_counts(row, block, group) for row in rows):
                yield label, group, True


def _cell(table: PaperTable, row: Row, block: Block, column: Column, runs: Sequence[Run]) -> Cell:
    label, group, with_background = column
    counted_so = group is None or _counts(row, block, group) == with_background
    paper = table.score(row, block, label) if counted_so else None
    ours = [run.group(group.first, group.last, with_background) for run in runs] if group else []
    heading = f"{label}+bg" if with_background else label
    return Cell(heading, tuple(ours), nan_if_none(paper))


def _counts(row: Row, block: Block, group: Group) -> bool:
    """Whether a row counts background in a group."""
    where = row.counts_background(block.protocol)
    return group.first == 1 and (where == "first" or (where == "all" and group.last == block.num_foreground))


def as_table(title: str, lines: Sequence[Line]) -> Table:
    """Three lines per row: ours (of several seeds the mean and the deviation), the paper's, and the difference."""
    rows = []
    for line in lines:
        seeds = f"ours ({len(line.runs)})" if len(line.runs) > 1 else "ours"
        if line.runs:
            rows.append([line.row.label, seeds, *(mean_and_spread(cell.ours) for cell in line.cells)])
        if not line.runs or line.has_numbers:
            rows.append(["" if line.runs else line.row.label, "paper", *(_number(cell.paper) for cell in line.cells)])
        if line.runs and line.has_numbers:
            rows.append(["", "Δ", *(_signed(cell.difference) for cell in line.cells)])
    headings = [cell.heading for cell in lines[0].cells] if lines else []
    return Table(title, ["method", "", *headings], rows, "; ".join(_deviation_notes(lines)))


def _number(value: float) -> str:
    """With one digit, or two where the paper prints two."""
    return "–" if math.isnan(value) else f"{value:.2f}".removesuffix("0")


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.1f}".replace("-", "−")


def _deviation_notes(lines: Iterable[Line]) -> list[str]:
    """In what the runs differ from the published recipe; rows that differ alike are named together."""
    found: dict[str, list[str]] = {}
    for line in lines:
        for run in line.runs:
            words = ", ".join(deviations(run.settings, line.row, published(line.row, run.protocol, run.seed)))
            if words and line.row.label not in found.setdefault(words, []):
                found[words].append(line.row.label)
    return [f"{', '.join(rows)}: not the published recipe: {words}" for words, rows in found.items()]


def published(row: Row, protocol: str, seed: int) -> RunConfig:
    """The recipe that the paper's row stands for under a protocol, scored as the paper scores."""
    return load_recipe(protocol, {**merge(EVALUATION, row.settings), "method": row.method, "seed": seed})


def deviations(settings: Mapping[str, Any], row: Row, recipe: RunConfig) -> list[str]:
    """Every setting of a run that is not the recipe's, in words; but for what the row leaves to the person."""
    expected = flat_settings(recipe)
    aside = {"protocol", "method", "seed", f"settings.{row.needs}"}
    return [
        f"{name.removeprefix('settings.')} {settings.get(name, 'default')} (published: {expected.get(name, 'default')})"
        for name in sorted({*settings, *expected} - aside)
        if settings.get(name) != expected.get(name)
    ]


def beside_the_paper(runs: Sequence[Run]) -> list[Table]:
    """For runs of a protocol that the paper reports: its tables with the rows of their methods; else nothing.

    A run stands beside the row of its method whose settings are nearest, and the table says what differs.
    """
    protocol = runs[0].protocol
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        nearest = min(_candidates(run, protocol), key=lambda candidate: candidate[0], default=None)
        if nearest is not None:
            _, table, row = nearest
            found.setdefault(table.name, {}).setdefault(row.name, []).append(run)
    tables = []
    for name, by_row in found.items():
        table = read_tables()[name]
        title = f"{protocol} beside {table.title_in_paper} (mIoU, %)"
        tables.append(as_table(title, compare(table, table.block(protocol), by_row)))
    return tables


def _candidates(run: Run, protocol: str) -> Iterator[tuple[int, PaperTable, Row]]:
    """Rows of the paper that a finished run may repeat, with the number of settings in which it differs."""
    for table in read_tables().values():
        blocks = [block for block in table.blocks if block.protocol == protocol and table.number]
        if blocks and len(run.classes) == blocks[0].num_foreground + 1:
            for row in table.rows:
                if row.method == run.method and (row.task is not None) == run.is_offline:
                    yield len(deviations(run.settings, row, published(row, run.protocol, run.seed))), table, row
