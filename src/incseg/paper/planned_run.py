"""A run that a table of the paper needs: its configuration, its folder, and the command that trains it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from incseg.config import (
    RunConfig,
    as_text,
    differing_setting,
    flat_settings,
    from_yaml,
    load_recipe,
    merge,
    published_name,
)
from incseg.engine.first_step import first_step_identity
from incseg.engine.precision import with_precision
from incseg.errors import InputError
from incseg.methods import parse
from incseg.paper.tables import Block, PaperRow
from incseg.protocol import Protocol
from incseg.registry import PLUGINS
from incseg.results import Run
from incseg.run_folder import RunFolder

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class PlannedRun:
    """The published recipe of a row, the row's own settings, and the settings that the user added."""

    row: PaperRow
    recipe: str
    """The protocol, or the published recipe of it in another class order."""
    num_foreground: int
    seed: int
    added: Settings
    """The user's settings; where the row sets the same one, the row's value is used."""
    data: Mapping[str, Path]
    """Where the dataset (``root``) and the published lists of its images (``splits``) are, as far as given."""
    out: Path

    @classmethod
    def of(
        cls, row: PaperRow, block: Block, order: str, seed: int, added: Settings, data: Mapping[str, Path], out: Path
    ) -> "PlannedRun":
        """The run behind a row's numbers for a protocol, in a class order."""
        protocol = block.protocol
        if row.task:
            # With all classes at once disjoint and overlapped are the same: one run serves all protocols of a dataset.
            protocol = f"{Protocol.parse(protocol).dataset}/{row.task}/overlapped"
            data = {name: path for name, path in data.items() if name != "splits"}
        recipe = published_name(protocol, (order,))
        if not recipe:
            raise InputError(f"{protocol} has no published recipe in the class order '{order}': leave out --orders.")
        return cls(row, recipe, block.num_foreground, seed, added, data, out)

    @property
    def protocol(self) -> str:
        """The protocol that is trained."""
        return self.config.protocol

    @property
    def settings(self) -> dict[str, Any]:
        """What the command adds to the recipe."""
        return merge(self.added, self.row.settings)

    @cached_property
    def config(self) -> RunConfig:
        """The configuration that will be trained."""
        return self._load(merge(self.settings, {"data": dict(self.data)}))

    @cached_property
    def published(self) -> RunConfig:
        """The configuration that the paper's row stands for."""
        return self.row.published_recipe(self.recipe, self.seed)

    @property
    def deviations(self) -> list[str]:
        """How the configuration differs from the paper's."""
        return self.row.deviations(flat_settings(self.config), self.protocol, self.seed)

    def _load(self, settings: Mapping[str, Any]) -> RunConfig:
        return load_recipe(self.recipe, {**settings, "method": self.row.method, "seed": self.seed})

    @cached_property
    def folder(self) -> Path:
        """Named after recipe, method, the row's settings and the seed, so that tables share their common runs."""
        plain = flat_settings(self._load({}))
        own = {n: v for n, v in flat_settings(self.published).items() if plain.get(n) != v}
        words = [f"{name.removeprefix('settings.')}={value}" for name, value in own.items()]
        return self.out / self.recipe.replace("/", "-") / f"{','.join([self.row.method, *words])}-seed{self.seed}"

    @cached_property
    def first_step(self) -> str:
        """Runs with the same value can share step 0."""
        return first_step_identity(self.config)

    @property
    def has_first_step(self) -> bool:
        """Whether step 0 is trained and scored, so that other runs can start from it."""
        return RunFolder(self.folder).is_finished(0)

    @property
    def is_done(self) -> bool:
        """Whether every step is trained and scored."""
        if not RunFolder(self.folder).result.exists():
            return False
        return len(Run.read(self.folder).steps) == len(Protocol.parse(self.protocol).steps(self.num_foreground))

    def check(self) -> None:
        """Refuse settings that do not exist, and a folder that holds another experiment."""
        parse(self.config.method, self.config.settings)
        existing = RunFolder(self.folder).config
        difference = differing_setting(from_yaml(existing), with_precision(self.config)) if existing.exists() else ""
        if difference:
            raise InputError(f"{self.folder} holds another run ({difference}); choose another --out.")

    def arguments(self, first_step: Path | None = None) -> list[str]:
        """The command line after ``incseg``, starting from the step 0 of another run if one is given."""
        words = ["train", self.recipe, "--method", self.row.method, "--seed", str(self.seed)]
        words += ["--out", str(self.folder)]
        for name, option in (("root", "--data-root"), ("splits", "--splits")):
            words += [option, str(self.data[name])] if name in self.data else []
        words += ["--first-step", str(first_step)] if first_step else []
        for plugin in PLUGINS:
            words += ["--plugin", str(plugin)]
        return words + list(_dotted(self.settings))


def _dotted(settings: Settings) -> Iterator[str]:
    """Settings as the command line takes them."""
    for section, values in settings.items():
        for name, value in values.items():
            yield f"--{section}.{name.replace('_', '-')}"
            yield as_text(value)
