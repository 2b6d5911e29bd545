"""From a table of the paper to the runs it needs."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incseg.config import RunConfig
from incseg.errors import InputError, closest
from incseg.files import usable_folder
from incseg.methods import summands
from incseg.paper import Block, Row, Table, read_table
from incseg.paper.planned_run import PlannedRun, Settings
from incseg.protocol import Protocol

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


def choose_rows(table: Table, wanted: Sequence[str]) -> list[Row]:
    """Rows by their names or their labels in the paper, in the table's order; all if none is wanted."""
    names = {key: row for row in table.rows for key in (row.label.lower(), row.name.lower())}
    for name in wanted:
        if name.lower() not in names:
            raise InputError(
                f"{table.name} has no row '{name}': choose from {', '.join(row.name for row in table.rows)}."
                f"{closest(name, names)}"
            )
    chosen = [names[name.lower()] for name in wanted]
    return [row for row in table.rows if row in chosen] if wanted else list(table.rows)


def choose_blocks(table: Table, wanted: Sequence[str]) -> list[Block]:
    """Blocks by their protocol or a part of it, in the table's order; all if none is wanted."""
    for name in wanted:
        if not any(_is_part(name, block.protocol) for block in table.blocks):
            raise InputError(
                f"{table.name} has no column '{name}': give one of {', '.join(b.protocol for b in table.blocks)}, "
                "or a part such as 15-5 or disjoint."
            )
    return [b for b in table.blocks if not wanted or any(_is_part(name, b.protocol) for name in wanted)]


def _is_part(name: str, protocol: str) -> bool:
    """Whole fields only: 10-1 is not a part of 10-10."""
    return f"/{name.strip('/')}/" in f"/{protocol}/"


def find_roots(given: Sequence[str], blocks: Sequence[Block]) -> dict[str, Path]:
    """Folders by dataset, from one ``DIR`` or several ``DATASET=DIR``."""
    datasets = sorted({dataset(block) for block in blocks})
    named = dict(text.split("=", 1) for text in given if "=" in text)
    plain = [text for text in given if "=" not in text]
    if len(plain) > 1 or (plain and (named or len(datasets) > 1)):
        wish = " ".join(f"{name}=DIR" for name in datasets)
        raise InputError(
            f"--data-root {' '.join(given)} does not say which dataset lies where: write --data-root {wish}, or choose "
            "columns of one dataset."
        )
    for name in named:
        if name not in datasets:
            raise InputError(f"--data-root names '{name}', but the columns are of {', '.join(datasets)}.")
    return {name: Path(root) for name, root in ([(d, plain[0]) for d in datasets] if plain else named.items())}


def dataset(block: Block) -> str:
    """The dataset of a block's protocol."""
    return Protocol.parse(block.protocol).dataset


def obstacle(row: Row, settings: Settings) -> str:
    """Why a row cannot be run; empty if it can."""
    section, _, name = (row.needs or "").partition(".")
    given = not row.needs or name in settings.get(section, {})
    return "" if given else f"it needs --{row.needs} VALUE, which no table can give (see: incseg list methods)"


def meant_for(row: Row, settings: Settings) -> dict[str, Any]:
    """Of the person's settings, those of the run and of the row's methods."""
    owners = {*RunConfig.model_fields, *summands(row.method)}
    return {owner: values for owner, values in settings.items() if owner in owners}


def require_use(settings: Settings, rows: Sequence[Row]) -> None:
    """Refuse settings that no run would take."""
    owners = {*RunConfig.model_fields, *(name for row in rows for name in summands(row.method))}
    for owner in settings:
        if owner not in owners:
            raise InputError(
                f"--{owner}.… is neither a group of settings nor one of a method in these rows.{closest(owner, owners)}"
            )
