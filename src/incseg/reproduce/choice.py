"""What a person chose of a table: rows, columns, folders of data, settings; and what is wrong with the choice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from incseg.config import RunConfig
from incseg.errors import InputError, closest
from incseg.methods.registry import summands
from incseg.paper import Block, Row, Table
from incseg.protocol import Protocol
from incseg.reproduce.runs import Settings


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
