"""The run behind a row of a table: the published recipe, the row's own settings, and those that the user added."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from incseg.config import flat_settings, published_name
from incseg.errors import InputError
from incseg.paper.tables import Block, PaperRow
from incseg.protocol import Protocol
from incseg.study.planned_run import PlannedRun, Settings


@dataclass(frozen=True, kw_only=True)
class RowRun(PlannedRun):
    """A planned run, and the row that it repeats."""

    row: PaperRow

    @classmethod
    def of(
        cls, row: PaperRow, block: Block, order: str, seed: int, added: Settings, data: Mapping[str, Path], out: Path
    ) -> "RowRun":
        """The run behind a row's numbers for a protocol, in a class order."""
        protocol = block.protocol
        if row.task:
            # With all classes at once disjoint and overlapped are the same: one run serves all protocols of a dataset.
            protocol = f"{Protocol.parse(protocol).dataset}/{row.task}/overlapped"
            data = {name: path for name, path in data.items() if name != "splits"}
        recipe = published_name(protocol, (order,))
        if not recipe:
            raise InputError(f"{protocol} has no published recipe in the class order '{order}': leave out --orders.")
        return cls(recipe, row.method, seed, row.settings, added, data, out, row=row)

    @property
    def deviations(self) -> list[str]:
        """How the configuration differs from the paper's."""
        return self.row.deviations(flat_settings(self.config), self.config.protocol, self.seed)
