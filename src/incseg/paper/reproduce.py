"""Running a plan: each run is a process of its own, so that one that fails takes nothing with it."""

import csv
import math
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from incseg.config import DataConfig
from incseg.console import Console, Table
from incseg.curriculum.curriculum import Curriculum
from incseg.engine.assembly import build_curriculum
from incseg.errors import TrainingError
from incseg.files import replacing
from incseg.methods import parse
from incseg.paper import Block
from incseg.paper import Table as PaperTable
from incseg.paper.comparison import Line, Outcome, as_table, compare
from incseg.paper.plan import Plan
from incseg.paper.planned_run import PlannedRun
from incseg.paper.plots import draw
from incseg.run_folder import Run


def reproduce_table(plan: Plan, out: Path, console: Console) -> None:
    """Run what a plan still needs, then show and keep ours beside the paper's."""
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
    if failed:
        folders = ", ".join(str(run.folder) for run in failed)
        raise TrainingError(f"{len(failed)} of {len(plan.runs)} runs failed: {folders}; run this again to retry them.")


def execute(plan: Plan, console: Console) -> list[PlannedRun]:
    """Do what is not done yet; returns the runs that failed."""
    pending = [run for run, _ in plan.pending]
    check_data(pending, console)
    failed = []
    for number, run in enumerate(pending, 1):
        command = run.arguments(_first_step_for(run, plan))
        console.say(f"run {number} of {len(pending)}: incseg {shlex.join(command)}")
        if subprocess.run([sys.executable, "-m", "incseg", *command], check=False).returncode != 0:
            failed.append(run)
    return failed


def check_data(runs: Sequence[PlannedRun], console: Console) -> None:
    """What is wrong with the data, or with a method on it, is said once, before the first run, not by every run."""
    curricula: dict[tuple[str, DataConfig], Curriculum] = {}
    for run in runs:
        config = run.config
        described = (config.protocol, config.data)
        if described not in curricula:
            curricula[described] = build_curriculum(config, console)
        curriculum = curricula[described]
        parse(config.method, config.settings).check(curriculum.steps, curriculum.classes)


def _first_step_for(run: PlannedRun, plan: Plan) -> Path | None:
    """Another run's step 0 if one is there by now; the run that was to provide it may have failed."""
    others = (other for other in plan.runs if other.folder != run.folder and other.first_step == run.first_step)
    return next((other.folder for other in others if other.has_first_step), None)


FIELDS = ["table", "protocol", "row", "group", "seeds", "mean", "std", "paper", "difference"]


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
