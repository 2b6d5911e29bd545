"""What came of a plan: tables beside the paper's, as text and as a file for other programs."""

import csv
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from incseg.files import replacing
from incseg.paper import Block
from incseg.paper import Table as PaperTable
from incseg.report.comparison import Line, as_table, compare
from incseg.report.runs import Run
from incseg.report.tables import Table
from incseg.reproduce.plan import Plan

FIELDS = ["table", "protocol", "row", "group", "seeds", "mean", "std", "paper", "difference"]


Outcome = Sequence[tuple[Block, Sequence[Line]]]
"""Per protocol, every chosen row with what our runs say."""


def read_outcome(plan: Plan) -> Outcome:
    """Read what is finished; a row without a finished run is there with the paper's numbers alone."""
    return [(block, compare(plan.table, block, _finished_runs(plan, block))) for block in plan.blocks]


def _finished_runs(plan: Plan, block: Block) -> dict[str, list[Run]]:
    cells = {row.name: plan.cells.get((row.name, block.protocol), []) for row in plan.rows}
    return {name: [Run.read(run.folder) for run in planned if run.is_done] for name, planned in cells.items()}


def as_tables(table: PaperTable, outcome: Outcome) -> list[Table]:
    """One table per protocol."""
    where = table.title_in_paper
    return [as_table(f"{block.protocol}: mIoU (%) beside {where}", lines) for block, lines in outcome]


def write_csv(table: PaperTable, outcome: Outcome, path: Path) -> None:
    """One line per number, in percent; empty where there is none."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        for block, lines in outcome:
            writer.writerows([table.name, block.protocol, *fields] for fields in _records(lines))


def _records(lines: Sequence[Line]) -> Iterator[list[str | int]]:
    for line in lines:
        for cell in line.cells:
            ours = [100 * value for value in cell.ours]
            average = statistics.fmean(ours) if ours else math.nan
            spread = statistics.stdev(ours) if len(ours) > 1 else math.nan
            numbers = [average, spread, cell.paper, cell.difference]
            yield [line.row.label, cell.heading, len(ours), *("" if math.isnan(x) else f"{x:.2f}" for x in numbers)]
