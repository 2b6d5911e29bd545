"""Records: the results of finished runs as small files that can be kept under version control and read like runs.

A record is ``result.json`` without confusion matrices, with what every step cost and the command that gives the run.
It carries a checksum, so that a number changed by hand is noticed, and no path of the machine it was made on.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from incseg.config import (
    RunConfig,
    as_text,
    flat_settings,
    from_yaml,
    load_recipe,
    published_name,
    result_settings,
    section_types,
)
from incseg.methods import default_settings, parse
from incseg.results import RECORD, Run
from incseg.run_folder import RunFolder, write_json
from incseg.study.planned_run import recipe_name

NOT_KEPT = ("unreadable", "agreement", "colours", "extends")


def write_record(run: Run, out: Path) -> Path:
    """Write the record of a finished run below a folder, by protocol; returns the file.

    It is named after method and seed, and a checksum of the settings: the same run gives the same file.
    """
    settings = json.dumps(_without_places(run.settings), sort_keys=True)
    name = f"{run.method}-seed{run.seed}-{hashlib.sha256(settings.encode()).hexdigest()[:6]}{RECORD}"
    path = out / recipe_name(run.protocol) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record_of(run, from_yaml(RunFolder(run.folder).config)))
    return path


def find_record(config: RunConfig, folder: Path) -> Path | None:
    """The record of such a run below a folder, if there is one.

    A setting of the method that it does not name was left at the method's own default, whatever the recipe says by now.
    Any other did not exist yet when it was written, so it must be as the recipe has it.
    """
    plain = result_settings(load_recipe(config.protocol, {"method": config.method, "seed": config.seed}))
    defaults = default_settings(config.method)
    ours = defaults | _without_places(result_settings(config))
    for path in sorted((folder / recipe_name(config.protocol)).glob(f"{config.method}-seed{config.seed}-*{RECORD}")):
        theirs = json.loads(path.read_text(encoding="utf-8"))["settings"]
        if plain | defaults | theirs == ours:
            return path
    return None


def record_of(run: Run, config: RunConfig) -> dict[str, Any]:
    """What is kept of a run."""
    method = parse(config.method, config.settings)
    kept = {name: value for name, value in run.result.items() if name not in NOT_KEPT}
    return {
        **kept,
        "command": command_for(config),
        "settings": _without_places(run.settings),
        "keeps_images": method.keeps_data or method.rehearses,
        "steps": [
            {**{name: value for name, value in step.items() if name != "confusion"}, "cost": run.cost(step["step"])}
            for step in run.steps
        ],
    }


def command_for(config: RunConfig) -> str:
    """The command that trains this configuration; ``DIR`` stands for folders."""
    recipe = published_name(config.protocol, config.data.class_order) or config.protocol
    words = ["incseg", "train", recipe, "--method", config.method, "--seed", str(config.seed)]
    words += ["--data-root", "DIR"] if config.data.root else []
    words += ["--splits", "DIR"] if config.data.splits else []
    return shlex.join([*words, *_changed(config, load_recipe(recipe, {"method": config.method, "seed": config.seed}))])


def _changed(config: RunConfig, plain: RunConfig) -> Iterator[str]:
    """The settings in which a configuration differs from another, as the command line takes them."""
    ours, theirs = config.model_dump(mode="json"), plain.model_dump(mode="json")
    counted = {tuple(name.split(".")[:2]) for name in flat_settings(config)}
    for section in section_types():
        for name, value in ours[section].items():
            if value != theirs[section][name] and (section, name) in counted and (section, name) != ("data", "splits"):
                yield from (f"--{section}.{name.replace('_', '-')}", as_text(_named(f"{section}.{name}", value)))
    for method, values in ours["settings"].items():
        for name, value in values.items():
            if value != theirs["settings"].get(method, {}).get(name):
                yield from (f"--{method}.{name.replace('_', '-')}", as_text(_named(f"{method}.{name}", value)))


def _without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _named(name, value) for name, value in settings.items()}


def _named(setting: str, value: Any) -> Any:
    """A file or folder by its name alone: where it lies says something of the machine and nothing of the run."""
    is_place = isinstance(value, str) and (setting == "model.weights" or Path(value).is_absolute())
    return Path(value).name if is_place else value
