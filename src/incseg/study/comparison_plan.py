"""``incseg compare``: from recipes and methods to the runs they need."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from incseg.config import load_recipe
from incseg.errors import InputError
from incseg.files import usable_folder
from incseg.protocol import Protocol
from incseg.run_folder import RunFolder
from incseg.study.data_folders import data_roots, data_settings, lists_of_images
from incseg.study.planned_run import PlannedRun, Settings, recipe_name, refuse_unused, settings_for
from incseg.study.schedule import Schedule


@dataclass(frozen=True)
class Entrant:
    """A method that is compared, with settings and presets of its own."""

    method: str
    settings: Settings = field(default_factory=dict)
    presets: Sequence[str] = ()
    written: str = ""
    """As the person wrote it."""


@dataclass(frozen=True)
class ComparisonPlan:
    """Every entrant under every recipe, with every seed."""

    cells: Mapping[str, Mapping[str, Sequence[PlannedRun]]]
    """Runs by recipe, then by the entrant as it was written."""
    against: str | None
    """The entrant with which the others are compared; None: with none."""

    @property
    def schedule(self) -> Schedule:
        """The runs in order, each once."""
        return Schedule([run for entrants in self.cells.values() for runs in entrants.values() for run in runs])

    def page(self, recipe: str) -> Path:
        """Where the report on a recipe lies: beside its runs."""
        first = next(iter(self.cells[recipe].values()))[0]
        return RunFolder(first.folder.parent).report


def plan_comparison(
    recipes: Sequence[str],
    entrants: Sequence[Entrant],
    *,
    against: str | None = None,
    seeds: Sequence[int],
    out: Path = Path("runs/compare"),
    data_root: Sequence[str] = (),
    splits: Sequence[str] = (),
    trust: bool = False,
    settings: Settings | None = None,
) -> ComparisonPlan:
    """Plan the runs of a comparison; what cannot be run is refused here.

    Args:
        recipes: protocols, names of recipes, or recipe files.
        entrants: the methods; their own settings stand above those for all.
        against: the entrant with which the others are compared, as it was written; the first by default.
        seeds: one repetition with each.
        out: folder for all runs.
        data_root: ``DIR``, or ``DATASET=DIR`` for each dataset.
        splits: published lists of images, ``DIR`` for a single recipe or ``RECIPE=DIR`` for each.
        trust: whether recipe files may name code to run.
        settings: settings for all runs, by section; those of a method go to the runs of that method.
    """
    settings = settings or {}
    usable_folder(out)
    _refuse_repeated("recipe", [recipe_name(recipe) for recipe in recipes])
    _refuse_repeated("method", [entrant.written for entrant in entrants])
    refuse_unused(settings, [entrant.method for entrant in entrants], "that is compared")
    data = _data_of(recipes, data_root, splits, trust)
    cells = {
        recipe: {
            entrant.written: [_run(recipe, entrant, seed, settings, data[recipe], out, trust) for seed in seeds]
            for entrant in entrants
        }
        for recipe in recipes
    }
    plan = ComparisonPlan(cells, _reference(against, entrants))
    for run in plan.schedule.runs:
        run.check()
    _refuse_repeated("run", [str(run.folder) for run in plan.schedule.runs])
    return plan


def check_methods(recipes: Sequence[str], entrants: Sequence[Entrant], settings: Settings, *, trust: bool) -> None:
    """Refuse entrants whose methods cannot be; nothing but names and settings is looked at."""
    refuse_unused(settings, [entrant.method for entrant in entrants], "that is compared")
    for recipe, entrant in itertools.product(recipes, entrants):
        _run(recipe, entrant, 0, settings, {}, Path(), trust).check_method()


def _run(
    recipe: str, entrant: Entrant, seed: int, settings: Settings, data: Mapping[str, Path], out: Path, trust: bool
) -> PlannedRun:
    added = settings_for(entrant.method, settings)
    return PlannedRun(recipe, entrant.method, seed, entrant.settings, added, data, out, entrant.presets, trust)


def _data_of(
    recipes: Sequence[str], roots: Sequence[str], splits: Sequence[str], trust: bool
) -> dict[str, dict[str, Path]]:
    """Where the data of each recipe lies, as far as given."""
    datasets = {r: Protocol.parse(load_recipe(r, trust=trust).protocol).dataset for r in recipes}
    found = data_roots(roots, datasets.values(), "recipes")
    lists = lists_of_images(splits, {recipe: recipe for recipe in recipes}, "recipes")
    return {recipe: data_settings(found.get(datasets[recipe]), lists.get(recipe)) for recipe in recipes}


def _reference(against: str | None, entrants: Sequence[Entrant]) -> str:
    written = [entrant.written for entrant in entrants]
    if against is not None and against not in written:
        raise InputError(f"--against {against} is not among the methods: choose from {', '.join(written)}.")
    return against or written[0]


def _refuse_repeated(what: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"the {what} '{name}' is given twice: name each {what} once.")
