"""``incseg reproduce``, second half: train the runs of a plan and write our numbers beside the paper's."""

import csv
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from incseg.console import Console, Table, decimal, publish
from incseg.files import replacing
from incseg.paper.comparison import ComparedRow, Outcome, as_table, compare
from incseg.paper.plan import Plan
from incseg.paper.plots import draw
from incseg.paper.tables import Block, PaperTable
from incseg.results import Run, scored_lines
from incseg.study.execution import execute, refuse_failures

CSV_HEADER = ["table", "protocol", "row", "group", "seeds", "mean", "std", "paper", "difference", "scored"]


def reproduce_table(plan: Plan, out: Path, console: Console, jobs: int = 1) -> None:
    """Train what a plan still needs, then show and write our numbers beside the paper's."""
    failed = execute(plan.schedule, console, jobs)
    outcome = read_outcome(plan)
    for table in as_tables(plan.table, outcome):
        console.show(table)
    for label, reason in plan.left_out.items():
        console.say(f"left out: {label}: {reason}")
    numbers = out / f"{plan.table.name}.csv"
    write_csv(plan.table, outcome, numbers)
    written = ", ".join(map(str, [numbers, *draw(plan.table, outcome, out)]))
    console.say(f"written: {written}")
    publish(csv=numbers, failed=[run.folder for run in failed])
    refuse_failures(failed, plan.schedule)


def read_outcome(plan: Plan) -> Outcome:
    """Read the finished runs; a row without one has the paper's numbers only."""
    return [(block, compare(plan.table, block, _finished_runs(plan, block))) for block in plan.blocks]


def _finished_runs(plan: Plan, block: Block) -> dict[str, list[Run]]:
    cells = {row.name: plan.cells.get((row.name, block.protocol), []) for row in plan.rows}
    return {name: [Run.read(run.folder) for run in planned if run.is_done] for name, planned in cells.items()}


def as_tables(table: PaperTable, outcome: Outcome) -> list[Table]:
    """One table per protocol."""
    return [as_table(f"{block.protocol}: mIoU (%) beside {table.title_in_paper}", rows) for block, rows in outcome]


def write_csv(table: PaperTable, outcome: Outcome, path: Path) -> None:
    """One line per number, in percent; empty where there is none."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_HEADER)
        for block, rows in outcome:
            writer.writerows([table.name, block.protocol, *fields] for fields in _csv_fields(rows))


def _csv_fields(rows: Sequence[ComparedRow]) -> Iterator[list[str | int]]:
    for row in rows:
        for score in row.scores:
            ours = [100 * value for value in score.ours]
            average = statistics.fmean(ours) if ours else math.nan
            spread = statistics.stdev(ours) if len(ours) > 1 else math.nan
            numbers = [average, spread, score.paper, score.difference]
            texts = ["" if math.isnan(x) else decimal(x, 2) for x in numbers]
            yield [row.row.label, score.heading, len(ours), *texts, "; ".join(scored_lines(row.runs))]
