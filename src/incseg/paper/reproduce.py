"""``incseg reproduce``, second half: train the runs of a plan and write our numbers beside the paper's.

Each run is a process of its own, so that a run that fails does not stop the others.
"""

import csv
import math
import shlex
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from incseg.config import DataConfig
from incseg.console import Console, Table, decimal, publish
from incseg.curriculum import Curriculum, build_curriculum
from incseg.engine.signals import run_child
from incseg.errors import Stopped, TrainingError
from incseg.files import replacing
from incseg.methods import parse
from incseg.paper.comparison import ComparedRow, Outcome, as_table, compare
from incseg.paper.plan import Plan
from incseg.paper.planned_run import PlannedRun
from incseg.paper.plots import draw
from incseg.paper.tables import Block, PaperTable
from incseg.protocol import Protocol
from incseg.results import Run, scored_lines

CSV_HEADER = ["table", "protocol", "row", "group", "seeds", "mean", "std", "paper", "difference", "scored"]


def reproduce_table(plan: Plan, out: Path, console: Console) -> None:
    """Train what a plan still needs, then show and write our numbers beside the paper's."""
    failed = execute(plan, console)
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
    if failed:
        folders = ", ".join(str(run.folder) for run in failed)
        raise TrainingError(f"{len(failed)} of {len(plan.runs)} runs failed: {folders}; run this again to retry them.")


def execute(plan: Plan, console: Console) -> list[PlannedRun]:
    """Train the runs that are not done yet; returns those that failed."""
    pending = [run for run, _ in plan.pending]
    check_data(pending, console)
    failed = []
    for number, run in enumerate(pending, 1):
        asked = ["--quiet"] * console.results_only + ["--progress", "json"] * console.in_lines
        command = [*run.arguments(_available_first_step(run, plan)), *asked]
        console.mention(f"run {number} of {len(pending)}: incseg {shlex.join(command)}")
        code = run_child([sys.executable, "-m", "incseg", *command])
        if code == Stopped.EXIT_CODE:
            raise Stopped("stopped as it was asked to; run the same command again to resume from the last checkpoint.")
        if code != 0:
            failed.append(run)
    return failed


def check_data(runs: Sequence[PlannedRun], console: Console) -> None:
    """Check the data, and every method on it, once before the first run, instead of failing in every run."""
    curricula: dict[tuple[str, DataConfig], Curriculum] = {}
    for run in runs:
        config = run.config
        key = (config.protocol, config.data)
        if key not in curricula:
            protocol = Protocol.parse(config.protocol)
            curricula[key] = build_curriculum(protocol, config.data, console.say, console.mention)
        curriculum = curricula[key]
        parse(config.method, config.settings).check(curriculum.steps, curriculum.classes)


def _available_first_step(run: PlannedRun, plan: Plan) -> Path | None:
    """Any finished run with the same step 0: the one planned to provide it may have failed."""
    others = (other for other in plan.runs if other.folder != run.folder and other.first_step == run.first_step)
    return next((other.folder for other in others if other.has_first_step), None)


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
