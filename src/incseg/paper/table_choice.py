"""Which rows and columns of a table a person means."""

from collections.abc import Sequence

from incseg.errors import InputError, closest
from incseg.paper.tables import Block, PaperRow, PaperTable
from incseg.study.data_folders import is_part


def choose_rows(table: PaperTable, wanted: Sequence[str]) -> list[PaperRow]:
    """Rows by name or by label in the paper, in the table's order; all if none is named."""
    names = {key: row for row in table.planned_rows for key in (row.label.lower(), row.name.lower())}
    for name in wanted:
        if name.lower() not in names:
            raise InputError(
                f"{table.name} has no row '{name}': choose from {', '.join(row.name for row in table.planned_rows)}."
                f"{closest(name, names)}"
            )
    chosen = [names[name.lower()] for name in wanted]
    return [row for row in table.planned_rows if row in chosen] if wanted else list(table.planned_rows)


def choose_blocks(table: PaperTable, wanted: Sequence[str]) -> list[Block]:
    """Blocks by protocol or a part of it, in the table's order; all if none is named."""
    for name in wanted:
        if not any(is_part(name, block.protocol) for block in table.blocks):
            raise InputError(
                f"{table.name} has no column '{name}': give one of {', '.join(b.protocol for b in table.blocks)}, "
                "or a part such as 15-5 or disjoint."
            )
    return [b for b in table.blocks if not wanted or any(is_part(name, b.protocol) for name in wanted)]
