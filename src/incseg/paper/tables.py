"""The paper's tables: rows are methods, blocks are protocols, and the columns of a block are groups of classes."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from incseg.config import OF_METHOD, RunConfig, flat_settings, load_recipe, merge, published_images, published_name
from incseg.errors import InputError, closest

Background = Literal["none", "first", "all"]
"""Where a row counts background: nowhere, in the first group and in all classes, or in all classes only."""

FOLDER = Path(__file__).parent


class StrictModel(BaseModel):
    """Part of a YAML file; a key that is not declared is a mistake in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ClassGroup(StrictModel):
    """A column of scores: its heading in the paper, and the range of channels it averages (both ends included)."""

    label: str
    first: int
    last: int


class Block(StrictModel):
    """The columns of one protocol. A heading without classes, such as a time, is not a score."""

    protocol: str
    groups: dict[str, str | int | None]

    @property
    def scores(self) -> list[ClassGroup]:
        """The columns that are scores."""
        found = []
        for label, classes in self.groups.items():
            if classes is not None:
                first, _, last = str(classes).partition("-")
                found.append(ClassGroup(label=label, first=int(first), last=int(last or first)))
        return found

    @property
    def num_foreground(self) -> int:
        """The number of classes after the last step, without background."""
        return max(group.last for group in self.scores)


class PaperRow(StrictModel):
    """A row: its label in the paper, the run it stands for, and its numbers, block by block."""

    label: str
    name: str = ""
    """Its name on the command line; the method by default."""
    method: str
    settings: dict[str, dict[str, Any]] = {}
    """Settings beyond the published recipe."""
    released: bool = False
    """The authors' released code does more than the paper says: run both, beside the same numbers."""
    task: str | None = None
    """The task to run instead of the block's; Joint learns all classes at once."""
    needs: str | None = None
    """A dotted setting that the user must give because the paper cannot."""
    background: Background | dict[str, Background] = "none"
    """Where it counts background; by protocol if that differs."""
    at: float | None = None
    """Its x position in a plot over a parameter."""
    series: str = ""
    """The line of that plot it belongs to."""
    scores: list[list[float | None]] | None = None
    """Percent; None where the paper prints a dash. No scores at all where only a picture is published."""
    scores_in: str | None = None
    """The table whose row of the same method has the numbers, where this one has none."""

    def as_released(self) -> "PaperRow":
        """The same row by the authors' released code instead of the paper's text."""
        settings = merge(self.settings, {"ucd": {"released": True}})
        changes = {"name": f"{self.name}-released", "label": f"{self.label}, as released", "settings": settings}
        return self.model_copy(update=changes)

    def counts_background(self, protocol: str) -> Background:
        """Where this row counts background under a protocol."""
        if isinstance(self.background, str):
            return self.background
        return self.background.get(protocol, "none")

    def published_recipe(self, recipe: str, seed: int) -> RunConfig:
        """The configuration that this row stands for under a protocol, or a recipe of it in another class order."""
        return load_recipe(recipe, {**self.settings, "method": self.method, "seed": seed})

    def deviations(self, settings: Mapping[str, Any], protocol: str, seed: int) -> list[str]:
        """Every flat setting of a run that differs from the published recipe, except the one this row leaves open.

        A setting that is none of a method's and that the run does not name did not exist yet, so the run was as it is
        by default. Where the numbers of images are published, lists of images are part of the recipe, and those numbers
        are compared instead: see :func:`image_differences`.
        """
        order = settings.get("data.class_order")
        expected = flat_settings(self.published_recipe(published_name(protocol, order) or protocol, seed))
        not_compared = {"protocol", "method", "seed", f"{OF_METHOD}{self.needs}"}
        not_compared |= {"data.splits"} if published_images(protocol, order) else set()
        not_compared |= {name for name, value in expected.items() if value == "auto" and name.startswith("engine.")}
        return [
            f"{name.removeprefix(OF_METHOD)} {settings.get(name, 'default')} "
            f"(published: {expected.get(name, 'default')})"
            for name in sorted({*settings, *expected} - not_compared)
            if name in settings or name.startswith(OF_METHOD)
            if settings.get(name) != expected.get(name)
        ]


class PaperTable(StrictModel):
    """A table of the paper, or the experiment behind one of its figures."""

    name: str
    number: int | None = None
    """The paper's number; a figure has none."""
    label: str
    title: str
    blocks: list[Block]
    parameter: str | None = None
    """What changes from row to row, if that is a number."""
    rows: list[PaperRow]

    @model_validator(mode="before")
    @classmethod
    def _name_rows(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A row without a name is named after its method."""
        return {**values, "rows": [{"name": row["method"], **row} for row in values["rows"]]}

    @model_validator(mode="after")
    def _check_complete(self) -> "PaperTable":
        """Every row has a number or a dash for every column."""
        assert len({row.name for row in self.rows}) == len(self.rows), f"two rows of {self.name} have the same name"
        for row in self.rows:
            widths = [len(values) for values in row.scores] if row.scores else None
            assert widths in (None, [len(block.groups) for block in self.blocks]), f"{self.name}: {row.label}"
        return self

    @property
    def planned_rows(self) -> list[PaperRow]:
        """The paper's rows; those whose released code does more than the paper says are there twice."""
        return [planned for row in self.rows for planned in ([row, row.as_released()] if row.released else [row])]

    @property
    def title_in_paper(self) -> str:
        """Its place in the paper, for titles."""
        return f"Table {self.number} of the paper" if self.number else "a figure of the paper"

    def block(self, protocol: str) -> Block:
        """The columns of a protocol."""
        return next(block for block in self.blocks if block.protocol == protocol)

    def score(self, row: PaperRow, block: Block, label: str) -> float | None:
        """The paper's number under a heading, if it has one."""
        if row.scores is not None:
            return row.scores[self.blocks.index(block)][list(block.groups).index(label)]
        if row.scores_in is None:
            return None
        other = read_table(row.scores_in)
        same_row = next(candidate for candidate in other.rows if candidate.method == row.method)
        return other.score(same_row, other.block(block.protocol), label)


@cache
def read_tables() -> dict[str, PaperTable]:
    """Every table by name, in the paper's order; the experiments behind figures come last."""
    contents = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in FOLDER.glob("*.yaml")}
    tables = [PaperTable(name=name, **content) for name, content in contents.items()]
    return {table.name: table for table in sorted(tables, key=lambda table: (table.number or 99, table.name))}


def read_table(name: str) -> PaperTable:
    """A table by its name or by its number in the paper."""
    tables = read_tables()
    by_number = {str(table.number): table for table in tables.values() if table.number}
    if name not in tables and name not in by_number:
        raise InputError(
            f"'{name}' is not a table: choose from {', '.join(tables)}, or give the paper's number, 1 to "
            f"{len(by_number)}.{closest(name, tables)}"
        )
    return tables.get(name) or by_number[name]
