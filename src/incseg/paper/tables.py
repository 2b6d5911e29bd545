"""Reading the paper's tables: rows are methods, blocks are protocols, and a block's columns are groups of classes."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from incseg.errors import InputError, closest

Background = Literal["none", "first", "all"]
"""Where a row counts background: nowhere, in the first group and in all classes, or in all classes only."""

# How the authors score, as MiB and PLOP before them: the middle of every image. The recipes score all of it.
EVALUATION: dict[str, dict[str, Any]] = {"data": {"scoring": "paper"}}

FOLDER = Path(__file__).parent


class Record(BaseModel):
    """A piece of a table; a name that is not known is a mistake in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Group(Record):
    """A column: its heading in the paper and the classes it averages, by their place in the order of learning."""

    label: str
    first: int
    last: int


class Block(Record):
    """The columns of one protocol. A heading without classes, such as a time, is not a score."""

    protocol: str
    groups: dict[str, str | int | None]

    @property
    def scores(self) -> list[Group]:
        """The groups of classes among the columns."""
        found = []
        for label, classes in self.groups.items():
            if classes is not None:
                first, _, last = str(classes).partition("-")
                found.append(Group(label=label, first=int(first), last=int(last or first)))
        return found

    @property
    def num_foreground(self) -> int:
        """How many classes there are after the last step, background not counted."""
        return max(group.last for group in self.scores)


class Row(Record):
    """A row: what the paper calls it, what it is here, and its numbers, block by block."""

    label: str
    name: str = ""
    """How to write it on the command line; the method unless said otherwise."""
    method: str
    settings: dict[str, dict[str, Any]] = {}
    """What it sets beyond the published recipe."""
    task: str | None = None
    """The task it is run with in place of the block's; Joint learns all classes at once."""
    needs: str | None = None
    """A setting, dotted, that the person must give; the paper cannot."""
    background: Background | dict[str, Background] = "none"
    """Where it counts background; by protocol if not everywhere alike."""
    at: float | None = None
    """Its place on the axis of a plot over a parameter."""
    series: str = ""
    """The line of that plot it belongs to."""
    scores: list[list[float | None]] | None = None
    """Percent; None where the paper has a dash, or where only a picture is published."""
    scores_in: str | None = None
    """The table whose row of the same method has the numbers, where this one has none."""

    def counts_background(self, protocol: str) -> Background:
        """Where this row counts background under a protocol."""
        if isinstance(self.background, str):
            return self.background
        return self.background.get(protocol, "none")


class Table(Record):
    """A table of the paper, or the experiment behind one of its figures."""

    name: str
    number: int | None = None
    """The paper's number; a figure has none."""
    label: str
    title: str
    blocks: list[Block]
    parameter: str | None = None
    """What changes from row to row, where that is a number."""
    rows: list[Row]

    @model_validator(mode="before")
    @classmethod
    def _named_rows(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A row goes by its method where nothing else is said."""
        return {**values, "rows": [{"name": row["method"], **row} for row in values["rows"]]}

    @model_validator(mode="after")
    def _complete(self) -> "Table":
        """Every row has a number or a dash for every column."""
        assert len({row.name for row in self.rows}) == len(self.rows), f"two rows of {self.name} go by one name"
        for row in self.rows:
            widths = [len(values) for values in row.scores] if row.scores else None
            assert widths in (None, [len(block.groups) for block in self.blocks]), f"{self.name}: {row.label}"
        return self

    @property
    def title_in_paper(self) -> str:
        """What the paper calls it."""
        return f"Table {self.number} of the paper" if self.number else "a figure of the paper"

    def block(self, protocol: str) -> Block:
        """The columns of a protocol."""
        return next(block for block in self.blocks if block.protocol == protocol)

    def score(self, row: Row, block: Block, label: str) -> float | None:
        """The paper's number under a heading, if it has one."""
        if row.scores is not None:
            return row.scores[self.blocks.index(block)][list(block.groups).index(label)]
        if row.scores_in is None:
            return None
        other = read_table(row.scores_in)
        same_row = next(candidate for candidate in other.rows if candidate.method == row.method)
        return other.score(same_row, other.block(block.protocol), label)


@cache
def read_tables() -> dict[str, Table]:
    """Every table by name, in the paper's order; the experiments behind figures last."""
    read = [Table(name=file.stem, **yaml.safe_load(file.read_text(encoding="utf-8"))) for file in FOLDER.glob("*.yaml")]
    return {table.name: table for table in sorted(read, key=lambda table: (table.number or 99, table.name))}


def read_table(name: str) -> Table:
    """A table by its name or by its number in the paper."""
    tables = read_tables()
    by_number = {str(table.number): table for table in tables.values() if table.number}
    if name not in tables and name not in by_number:
        raise InputError(
            f"'{name}' is not a table: choose from {', '.join(tables)}, or give the paper's number, 1 to "
            f"{len(by_number)}.{closest(name, tables)}"
        )
    return tables.get(name) or by_number[name]
