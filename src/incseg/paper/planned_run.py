"""A run that a table needs: what it is, where it lies, and the command that does it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from incseg.config import RunConfig, as_text, differing_setting, flat_settings, from_yaml, load_recipe, merge
from incseg.engine.first_step import first_step_identity
from incseg.errors import InputError
from incseg.methods import parse
from incseg.paper import EVALUATION, Block, Row
from incseg.paper.comparison import deviations, published
from incseg.protocol import Protocol
from incseg.run_folder import Run, RunFolder

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class PlannedRun:
    """One run: the published recipe of a row, the row's own settings, and what the person asked for besides."""

    row: Row
    protocol: str
    num_foreground: int
    seed: int
    asked: Settings
    """The person's settings; where a row sets the same, the row stands."""
    data_root: Path | None
    out: Path

    @classmethod
    def of(cls, row: Row, block: Block, seed: int, asked: Settings, data_root: Path | None, out: Path) -> "PlannedRun":
        """The run behind a row's numbers for a protocol."""
        protocol = Protocol.parse(block.protocol)
        # All classes at once: no class is later, so both settings are one, and one run serves all protocols.
        name = f"{protocol.dataset}/{row.task}/overlapped" if row.task else block.protocol
        return cls(row, name, block.num_foreground, seed, asked, data_root, out)

    @property
    def settings(self) -> dict[str, Any]:
        """What the command adds to the recipe."""
        return merge(merge(EVALUATION, self.asked), self.row.settings)

    @cached_property
    def config(self) -> RunConfig:
        """What will be run."""
        data = {"root": self.data_root} if self.data_root else {}
        return self._load(merge(self.settings, {"data": data}))

    @cached_property
    def published(self) -> RunConfig:
        """What the paper's recipe is for this row."""
        return published(self.row, self.protocol, self.seed)

    @property
    def deviations(self) -> list[str]:
        """In what the person's settings are not the paper's recipe."""
        return deviations(flat_settings(self.config), self.row, self.published)

    def _load(self, settings: Mapping[str, Any]) -> RunConfig:
        return load_recipe(self.protocol, {**settings, "method": self.row.method, "seed": self.seed})

    @cached_property
    def folder(self) -> Path:
        """Named by protocol, method and the row's settings, so that tables share what they have in common."""
        plain = flat_settings(self._load(EVALUATION))
        own = {n: v for n, v in flat_settings(self.published).items() if plain.get(n) != v}
        words = [f"{name.removeprefix('settings.')}={value}" for name, value in own.items()]
        return self.out / self.protocol.replace("/", "-") / f"{','.join([self.row.method, *words])}-seed{self.seed}"

    @cached_property
    def first_step(self) -> str:
        """Runs that agree in this can share step 0."""
        return first_step_identity(self.config)

    @property
    def has_first_step(self) -> bool:
        """Whether there is a step 0 to share."""
        return (RunFolder(self.folder).step(0) / "scores.json").exists()

    @property
    def is_done(self) -> bool:
        """Whether every step is learnt and scored."""
        if not RunFolder(self.folder).result.exists():
            return False
        return len(Run.read(self.folder).steps) == len(Protocol.parse(self.protocol).steps(self.num_foreground))

    def check(self) -> None:
        """Refuse settings that do not exist, and another experiment in the place of this one."""
        parse(self.config.method, self.config.settings)
        there = RunFolder(self.folder).config
        difference = differing_setting(from_yaml(there), self.config) if there.exists() else ""
        if difference:
            raise InputError(f"{self.folder} holds another run ({difference}); choose another --out.")

    def arguments(self, first_step: Path | None = None) -> list[str]:
        """What comes after ``incseg``."""
        words = ["train", self.protocol, "--method", self.row.method, "--seed", str(self.seed)]
        words += ["--out", str(self.folder)]
        words += ["--data-root", str(self.data_root)] if self.data_root else []
        words += ["--first-step", str(first_step)] if first_step else []
        return words + list(_dotted(self.settings))


def _dotted(settings: Settings) -> Iterator[str]:
    """Settings as the command line takes them."""
    for section, values in settings.items():
        for name, value in values.items():
            yield f"--{section}.{name.replace('_', '-')}"
            yield as_text(value)
