"""A run that a study needs: its configuration, its folder, and the command that trains it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from incseg.config import RunConfig, as_text, differing_setting, flat_settings, from_yaml, load_recipe, merge
from incseg.engine.first_step import first_step_identity
from incseg.engine.precision import with_precision
from incseg.errors import InputError, closest
from incseg.methods import parse, summands
from incseg.registry import PLUGINS
from incseg.results import Run
from incseg.run_folder import RunFolder

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class PlannedRun:
    """A recipe, a method with what is its own, a seed, and what all runs of the study are told."""

    recipe: str
    """A protocol, the name of a published recipe, or a recipe file."""
    method: str
    seed: int
    own: Settings
    """What distinguishes this run from the plain method; its folder is named after it."""
    added: Settings
    """What the person gives for all runs; a setting that a run has of its own is not changed."""
    data: Mapping[str, Path]
    """Where the dataset (``root``) and the published lists of its images (``splits``) are, as far as given."""
    out: Path
    presets: Sequence[str] = ()
    trust: bool = False
    """Whether a recipe file may name code to run."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the command adds to the recipe."""
        return merge(self.added, self.own)

    @cached_property
    def config(self) -> RunConfig:
        """The configuration that will be trained."""
        return self._load({**merge(self.settings, {"data": dict(self.data)}), "preset": list(self.presets)})

    def _load(self, settings: Mapping[str, Any]) -> RunConfig:
        return load_recipe(self.recipe, {**settings, "method": self.method, "seed": self.seed}, trust=self.trust)

    @cached_property
    def folder(self) -> Path:
        """Named after recipe, method, what is its own and the seed, so that studies share their common runs."""
        plain = flat_settings(self._load({}))
        own = flat_settings(self._load({**self.own, "preset": list(self.presets)}))
        words = [f"{n.removeprefix('settings.')}={v}" for n, v in own.items() if plain.get(n) != v]
        name = f"{','.join([self.method, *words])}-seed{self.seed}".replace("/", "_")
        return self.out / recipe_name(self.recipe) / name

    @cached_property
    def first_step(self) -> str:
        """What its step 0 is: runs with equal ones have the same network and the same head after it."""
        return first_step_identity(self.config)

    @cached_property
    def trained_first_step(self) -> str:
        """What the network of its step 0 is, whatever head is solved on it."""
        return first_step_identity(self.config, solved=False)

    @property
    def solves(self) -> bool:
        """Whether it gives the network of step 0 a head of its own, solved in closed form."""
        return self.first_step != self.trained_first_step

    def can_begin_with(self, other: "PlannedRun") -> bool:
        """Whether the step 0 of another run can serve as its own; a run that solves its head needs the network only."""
        if self.solves:
            return self.trained_first_step == other.trained_first_step
        return self.first_step == other.first_step

    @property
    def has_first_step(self) -> bool:
        """Whether step 0 is trained and scored, so that other runs can start from it."""
        return RunFolder(self.folder).is_finished(0)

    @property
    def is_done(self) -> bool:
        """Whether every step is trained and scored."""
        return RunFolder(self.folder).result.exists() and Run.read(self.folder).is_complete

    def check_method(self) -> None:
        """Refuse methods that cannot be summed, and settings that they do not have."""
        parse(self.config.method, self.config.settings)

    def check(self) -> None:
        """Refuse the same, and a folder that holds another experiment."""
        self.check_method()
        existing = RunFolder(self.folder).config
        difference = differing_setting(from_yaml(existing), with_precision(self.config)) if existing.exists() else ""
        if difference:
            raise InputError(f"{self.folder} holds another run ({difference}); choose another --out.")

    def arguments(self, first_step: Path | None = None) -> list[str]:
        """The command line after ``incseg``, starting from the step 0 of another run if one is given."""
        words = ["train", self.recipe, "--method", self.method, "--seed", str(self.seed)]
        words += ["--out", str(self.folder)]
        for name, option in (("root", "--data-root"), ("splits", "--splits")):
            words += [option, str(self.data[name])] if name in self.data else []
        words += ["--first-step", str(first_step)] if first_step else []
        words += ["--preset", *self.presets] if self.presets else []
        words += ["--trust"] if self.trust else []
        for plugin in PLUGINS:
            words += ["--plugin", str(plugin)]
        return words + list(dotted(self.settings))


def recipe_name(recipe: str) -> str:
    """A recipe as the name of a folder: that of a file is its own."""
    is_file = recipe.endswith((".yaml", ".yml"))
    return Path(recipe).stem if is_file else recipe.replace("/", "-")


def dotted(settings: Settings) -> Iterator[str]:
    """Settings as the command line takes them."""
    for section, values in settings.items():
        for name, value in values.items():
            yield f"--{section}.{name.replace('_', '-')}"
            yield as_text(value)


def settings_for(method: str, settings: Settings) -> dict[str, Any]:
    """Of the settings given for all runs, those for the run as a whole and for the summands of a method."""
    owners = {*RunConfig.model_fields, *summands(method)}
    return {owner: values for owner, values in settings.items() if owner in owners}


def refuse_unused(settings: Settings, methods: Sequence[str], which: str) -> None:
    """Refuse settings that no run would use; ``which`` methods there are, in words."""
    owners = {*RunConfig.model_fields, *(name for method in methods for name in summands(method))}
    for owner in settings:
        if owner not in owners:
            raise InputError(
                f"--{owner}.… is neither a section of the settings nor a method {which}.{closest(owner, owners)}"
            )
