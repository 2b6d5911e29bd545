"""``incseg reproduce``, first half: from a choice of rows and columns of a table to the runs they need."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from incseg.config import published_name
from incseg.errors import InputError
from incseg.files import usable_folder
from incseg.paper.row_run import RowRun
from incseg.paper.table_choice import choose_blocks, choose_rows
from incseg.paper.tables import Block, PaperRow, PaperTable, read_table
from incseg.protocol import Protocol
from incseg.study.data_folders import data_roots, data_settings, lists_of_images
from incseg.study.planned_run import Settings, refuse_unused, settings_for
from incseg.study.repetitions import seeds_from
from incseg.study.schedule import Schedule


@dataclass(frozen=True)
class Plan:
    """The runs of some rows and columns of a table."""

    table: PaperTable
    rows: Sequence[PaperRow]
    blocks: Sequence[Block]
    cells: Mapping[tuple[str, str], Sequence[RowRun]]
    """One run per class order and seed, by (name of the row, protocol of the block)."""
    left_out: Mapping[str, str]
    """Rows that cannot be run, and why."""

    @property
    def runs(self) -> list[RowRun]:
        """Every run once: several cells may need the same one."""
        return list({run.folder: run for runs in self.cells.values() for run in runs}.values())

    @property
    def schedule(self) -> Schedule:
        """Their order."""
        return Schedule(self.runs)

    def commands(self) -> Iterator[str]:
        """One command per line; lines that begin with # say what is left out, what differs, and what waits for what."""
        for row, reason in self.left_out.items():
            yield f"# left out: {row}: {reason}"
        done = sum(run.is_done for run in self.runs)
        yield f"# {self.table.title}: {done} of {len(self.runs)} runs done"
        for words in dict.fromkeys(words for run in self.runs for words in run.deviations):
            yield f"# not the published recipe: {words}"
        yield from self.schedule.commands()


def make_plan(
    table: str,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int = 1,
    out: Path = Path("runs/reproduce"),
    data_root: Sequence[str] = (),
    splits: Sequence[str] = (),
    orders: Sequence[str] = ("a",),
    settings: Settings | None = None,
) -> Plan:
    """Plan the runs of a table; a choice that cannot be run is refused here.

    Args:
        table: a name or a number of a table.
        rows: names of rows, or their labels in the paper; all rows by default.
        columns: protocols or parts of them, such as ``15-5`` or ``15-5/disjoint``; all by default.
        seeds: number of repetitions, each with its own seed.
        out: folder for all runs.
        data_root: ``DIR``, or ``DATASET=DIR`` for each dataset.
        splits: published lists of images, ``DIR`` for a single column or ``COLUMN=DIR`` for each, as in ``100-50=DIR``.
        orders: class orders, by name; each is a run of its own.
        settings: settings for all runs, by section; those of a method go to the runs of that method.
    """
    repetitions = seeds_from(seeds)
    usable_folder(out)
    found, settings = read_table(table), settings or {}
    chosen, blocks = choose_rows(found, rows), choose_blocks(found, columns)
    folders = _data_folders(blocks, orders, data_root, splits)
    left_out = {row.label: reason for row in chosen if (reason := _missing_setting(row, settings))}
    possible = [row for row in chosen if row.label not in left_out]
    if not possible:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
        raise InputError(f"nothing is left to run ({reasons}).")
    refuse_unused(settings, [row.method for row in possible], "of these rows")
    cells = {
        (row.name, block.protocol): [
            RowRun.of(row, block, order, seed, settings_for(row.method, settings), folders[block.protocol, order], out)
            for order in orders
            for seed in repetitions
        ]
        for block in blocks
        for row in possible
    }
    plan = Plan(found, chosen, blocks, cells, left_out)
    for run in plan.runs:
        run.check()
    return plan


def _data_folders(
    blocks: Sequence[Block], orders: Sequence[str], roots: Sequence[str], splits: Sequence[str]
) -> dict[tuple[str, str], dict[str, Path]]:
    """The settings ``root`` and ``splits`` of the data, by protocol and class order, as far as given.

    A person names a column as its recipe is named: ``ade20k/100-50-b/disjoint`` in order b.
    """
    pairs = [(block.protocol, order) for block in blocks for order in orders]
    names = {(protocol, order): published_name(protocol, (order,)) or protocol for protocol, order in pairs}
    found = data_roots(roots, [_dataset(protocol) for protocol, _ in pairs], "columns")
    lists = lists_of_images(splits, names, "columns")
    return {pair: data_settings(found.get(_dataset(pair[0])), lists.get(pair)) for pair in pairs}


def _dataset(protocol: str) -> str:
    return Protocol.parse(protocol).dataset


def _missing_setting(row: PaperRow, settings: Settings) -> str:
    """Why a row cannot be run, if it needs a setting that is not given; else empty."""
    section, _, name = (row.needs or "").partition(".")
    given = not row.needs or name in settings.get(section, {})
    return "" if given else f"it needs --{row.needs} VALUE, which the paper does not provide (see: incseg list methods)"
