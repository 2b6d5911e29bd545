"""From a table of the paper to the runs it needs."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from incseg.config import RunConfig
from incseg.errors import InputError
from incseg.files import usable_folder
from incseg.paper import Block, Row, Table, read_table
from incseg.reproduce.choice import choose_blocks, choose_rows, dataset, find_roots, meant_for, obstacle, require_use
from incseg.reproduce.runs import PlannedRun, Settings

FIRST_SEED = RunConfig.model_fields["seed"].default


@dataclass(frozen=True)
class Plan:
    """The runs of some rows and columns of a table."""

    table: Table
    rows: Sequence[Row]
    blocks: Sequence[Block]
    cells: Mapping[tuple[str, str], Sequence[PlannedRun]]
    """By name of the row and protocol of the block, one run per seed."""
    left_out: Mapping[str, str]
    """Rows that cannot be run, and why."""

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run once: several cells may need the same."""
        return list({run.folder: run for runs in self.cells.values() for run in runs}.values())

    @property
    def pending(self) -> list[tuple[PlannedRun, PlannedRun | None]]:
        """What is still to be done, each with the run whose step 0 it takes over; those that take none come first."""
        providers: dict[str, PlannedRun] = {}
        for run in sorted(self.runs, key=lambda run: not run.has_first_step):
            providers.setdefault(run.first_step, run)
        waiting = [(run, providers[run.first_step]) for run in self.runs if not run.is_done]
        pairs = [(run, None if provider is run else provider) for run, provider in waiting]
        return sorted(pairs, key=lambda pair: pair[1] is not None)

    def commands(self) -> Iterator[str]:
        """One command per line; lines that begin with # say what may run beside what."""
        for row, reason in self.left_out.items():
            yield f"# left out: {row}: {reason}"
        pending = self.pending
        yield f"# {self.table.title}: {len(self.runs) - len(pending)} of {len(self.runs)} runs done"
        for words in dict.fromkeys(words for run in self.runs for words in run.deviations):
            yield f"# not the published recipe: {words}"
        learning = [run for run, provider in pending if provider is None]
        sharing = [(run, provider) for run, provider in pending if provider is not None]
        if learning and sharing:
            yield "# these learn their own step 0; in any order"
        yield from (shlex.join(["incseg", *run.arguments()]) for run in learning)
        if sharing:
            yield "# these start from a step 0 above, or of an earlier run; when that is there, in any order"
        yield from (shlex.join(["incseg", *run.arguments(provider.folder)]) for run, provider in sharing)


def make_plan(
    table: str,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int = 1,
    out: Path = Path("runs/reproduce"),
    data_roots: Sequence[str] = (),
    settings: Settings | None = None,
) -> Plan:
    """Plan the runs of a table; whatever is wrong with the choice is said here.

    Args:
        table: a name or a number of a table.
        rows: names of rows, or their labels in the paper; all of them if none is given.
        columns: protocols or parts of them, such as ``15-5`` or ``15-5/disjoint``; all if none is given.
        seeds: how many repetitions, each with its own seed.
        out: folder for all runs.
        data_roots: ``DIR``, or ``DATASET=DIR`` for each dataset.
        settings: dotted settings for all runs; those of a method go to the runs with that method.
    """
    if seeds < 1:
        raise InputError(f"--seeds {seeds} is no number of repetitions: give 1 or more.")
    usable_folder(out)
    found, settings = read_table(table), settings or {}
    chosen, blocks = choose_rows(found, rows), choose_blocks(found, columns)
    roots = find_roots(data_roots, blocks)
    left_out = {row.label: reason for row in chosen if (reason := obstacle(row, settings))}
    possible = [row for row in chosen if row.label not in left_out]
    if not possible:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
        raise InputError(f"nothing is left to run ({reasons}).")
    require_use(settings, possible)
    cells = {
        (row.name, block.protocol): [
            PlannedRun.of(row, block, FIRST_SEED + index, meant_for(row, settings), roots.get(dataset(block)), out)
            for index in range(seeds)
        ]
        for block in blocks
        for row in possible
    }
    plan = Plan(found, chosen, blocks, cells, left_out)
    for run in plan.runs:
        run.check()
    return plan
