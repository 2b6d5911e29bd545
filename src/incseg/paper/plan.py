"""``incseg reproduce``, first half: from a choice of rows and columns of a table to the runs they need."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incseg.config import RunConfig, published_name
from incseg.errors import InputError, closest
from incseg.files import usable_folder
from incseg.methods import summands
from incseg.paper.planned_run import PlannedRun, Settings
from incseg.paper.table_choice import check_seeds, choose_blocks, choose_rows, is_part
from incseg.paper.tables import Block, PaperRow, PaperTable, read_table
from incseg.protocol import Protocol

FIRST_SEED = RunConfig.model_fields["seed"].default


@dataclass(frozen=True)
class Plan:
    """The runs of some rows and columns of a table."""

    table: PaperTable
    rows: Sequence[PaperRow]
    blocks: Sequence[Block]
    cells: Mapping[tuple[str, str], Sequence[PlannedRun]]
    """One run per class order and seed, by (name of the row, protocol of the block)."""
    left_out: Mapping[str, str]
    """Rows that cannot be run, and why."""

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run once: several cells may need the same one."""
        return list({run.folder: run for runs in self.cells.values() for run in runs}.values())

    @property
    def pending(self) -> list[tuple[PlannedRun, PlannedRun | None]]:
        """Runs not done yet, each with the run whose step 0 it starts from; those that train their own come first."""
        providers: dict[str, PlannedRun] = {}
        for run in sorted(self.runs, key=lambda run: not run.has_first_step):
            providers.setdefault(run.first_step, run)
        waiting = [(run, providers[run.first_step]) for run in self.runs if not run.is_done]
        pairs = [(run, None if provider is run else provider) for run, provider in waiting]
        return sorted(pairs, key=lambda pair: pair[1] is not None)

    def commands(self) -> Iterator[str]:
        """One command per line; lines that begin with # say which may run in parallel."""
        for row, reason in self.left_out.items():
            yield f"# left out: {row}: {reason}"
        pending = self.pending
        yield f"# {self.table.title}: {len(self.runs) - len(pending)} of {len(self.runs)} runs done"
        for words in dict.fromkeys(words for run in self.runs for words in run.deviations):
            yield f"# not the published recipe: {words}"
        independent = [run for run, provider in pending if provider is None]
        sharing = [(run, provider) for run, provider in pending if provider is not None]
        if independent and sharing:
            yield "# these train their own step 0; run them in any order"
        yield from (shlex.join(["incseg", *run.arguments()]) for run in independent)
        if sharing:
            yield "# these start from another run's step 0; run them in any order once it is there"
        yield from (shlex.join(["incseg", *run.arguments(provider.folder)]) for run, provider in sharing)


def make_plan(
    table: str,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int = 1,
    out: Path = Path("runs/reproduce"),
    data_roots: Sequence[str] = (),
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
        data_roots: ``DIR``, or ``DATASET=DIR`` for each dataset.
        splits: published lists of images, ``DIR`` for a single column or ``COLUMN=DIR`` for each, as in ``100-50=DIR``.
        orders: class orders, by name; each is a run of its own.
        settings: settings for all runs, by section; those of a method go to the runs of that method.
    """
    check_seeds(seeds)
    usable_folder(out)
    found, settings = read_table(table), settings or {}
    chosen, blocks = choose_rows(found, rows), choose_blocks(found, columns)
    folders = _data_folders(blocks, orders, _data_roots(data_roots, blocks), _lists(splits, blocks, orders))
    left_out = {row.label: reason for row in chosen if (reason := _missing_setting(row, settings))}
    possible = [row for row in chosen if row.label not in left_out]
    if not possible:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
        raise InputError(f"nothing is left to run ({reasons}).")
    _refuse_unused(settings, possible)
    cells = {
        (row.name, block.protocol): [
            PlannedRun.of(
                row, block, order, FIRST_SEED + index, _settings_for(row, settings), folders[block.protocol, order], out
            )
            for order in orders
            for index in range(seeds)
        ]
        for block in blocks
        for row in possible
    }
    plan = Plan(found, chosen, blocks, cells, left_out)
    for run in plan.runs:
        run.check()
    return plan


def _data_roots(given: Sequence[str], blocks: Sequence[Block]) -> dict[str, Path]:
    """Folders by dataset, from one ``DIR`` or several ``DATASET=DIR``."""
    datasets = sorted({_dataset(block) for block in blocks})
    named = dict(text.split("=", 1) for text in given if "=" in text)
    plain = [text for text in given if "=" not in text]
    if len(plain) > 1 or (plain and (named or len(datasets) > 1)):
        wish = " ".join(f"{name}=DIR" for name in datasets)
        raise InputError(
            f"--data-root {' '.join(given)} does not say which dataset is where: write --data-root {wish}, or choose "
            "columns of one dataset."
        )
    for name in named:
        if name not in datasets:
            raise InputError(f"--data-root names '{name}', but the columns are of {', '.join(datasets)}.")
    return {name: Path(root) for name, root in ([(d, plain[0]) for d in datasets] if plain else named.items())}


Column = tuple[str, str]  # a protocol, and the name of the class order in which it is run


def _columns(blocks: Sequence[Block], orders: Sequence[str]) -> dict[Column, str]:
    """Every protocol in every order, and how a person names it: ``ade20k/100-50-b/disjoint`` in order b."""
    pairs = [(block.protocol, order) for block in blocks for order in orders]
    return {(protocol, order): published_name(protocol, (order,)) or protocol for protocol, order in pairs}


def _lists(given: Sequence[str], blocks: Sequence[Block], orders: Sequence[str]) -> dict[Column, Path]:
    """Folders of lists by protocol and order, from one ``DIR`` or several ``COLUMN=DIR``."""
    found: dict[Column, Path] = {}
    columns = _columns(blocks, orders)
    for text in given:
        named, equals, folder = text.rpartition("=")
        fitting = [column for column, name in columns.items() if not equals or is_part(named, name)]
        if len(fitting) != 1:
            wish = " ".join(f"{name}=DIR" for name in columns.values())
            raise InputError(
                f"--splits {text} fits {len(fitting)} of the columns, and lists are of one: write --splits {wish}."
            )
        found[fitting[0]] = Path(folder)
    return found


def _data_folders(
    blocks: Sequence[Block], orders: Sequence[str], roots: Mapping[str, Path], lists: Mapping[Column, Path]
) -> dict[Column, dict[str, Path]]:
    """The settings ``root`` and ``splits`` of the data, by protocol and order, as far as given."""
    return {
        (block.protocol, order): {
            name: path
            for name, path in (("root", roots.get(_dataset(block))), ("splits", lists.get((block.protocol, order))))
            if path is not None
        }
        for block in blocks
        for order in orders
    }


def _dataset(block: Block) -> str:
    """The dataset of a block's protocol."""
    return Protocol.parse(block.protocol).dataset


def _missing_setting(row: PaperRow, settings: Settings) -> str:
    """Why a row cannot be run, if it needs a setting that is not given; else empty."""
    section, _, name = (row.needs or "").partition(".")
    given = not row.needs or name in settings.get(section, {})
    return "" if given else f"it needs --{row.needs} VALUE, which the paper does not provide (see: incseg list methods)"


def _settings_for(row: PaperRow, settings: Settings) -> dict[str, Any]:
    """The user's settings for the run as a whole and for the methods of this row."""
    owners = {*RunConfig.model_fields, *summands(row.method)}
    return {owner: values for owner, values in settings.items() if owner in owners}


def _refuse_unused(settings: Settings, rows: Sequence[PaperRow]) -> None:
    """Refuse settings that no run would use."""
    owners = {*RunConfig.model_fields, *(name for row in rows for name in summands(row.method))}
    for owner in settings:
        if owner not in owners:
            raise InputError(
                f"--{owner}.… is neither a section of the settings nor a method of these rows.{closest(owner, owners)}"
            )
