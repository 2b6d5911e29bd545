"""Recipes: settings in layers, from the published YAML files, the user's own file, and the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from incseg.checksums import require_intact_text, sealed_text
from incseg.config.settings import RunConfig, names_in, validate
from incseg.errors import InputError
from incseg.files import read_text
from incseg.protocol import Protocol

Layer = Mapping[str, Any]


def recipe_folder() -> Path:
    """The folder of the published recipes: inside an installed package, or at the top of a checkout."""
    installed = Path(__file__).parents[1] / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "recipes"


def recipe_names() -> list[str]:
    """Every published recipe, as one may write it after ``incseg train``."""
    files = sorted(recipe_folder().rglob("*.yaml"))
    names = [file.relative_to(recipe_folder()).with_suffix("").as_posix() for file in files]
    return [name for name in names if not name.endswith("/defaults")]


def load_recipe(recipe: str, overrides: Layer | None = None) -> RunConfig:
    """The configuration of a recipe, with overrides on top.

    A recipe is a protocol (``voc/15-5/overlapped``), the name of a published recipe (``demo``), or a YAML file with
    any of the settings of :class:`RunConfig`. Later layers win: the defaults of the settings, the
    dataset's ``recipes/DATASET/defaults.yaml``, the published recipe of the protocol, the given file, the overrides.
    """
    overrides = _gather_method_settings(overrides or {})
    own = _gather_method_settings(_read_yaml(Path(recipe))) if recipe.endswith((".yaml", ".yml")) else {}
    named = _published(recipe) if not own else {}
    protocol = overrides.get("protocol") or own.get("protocol") or named.get("protocol") or recipe
    if own and protocol == recipe:
        raise InputError(f"{recipe} names no protocol: add a line such as 'protocol: voc/15-5/overlapped'.")
    protocol = str(Protocol.parse(str(protocol)))
    published: dict[str, Any] = {}
    for layer in (_published(f"{protocol.split('/')[0]}/defaults"), _published(protocol), named):
        published = merge(published, layer)
    asked = merge(own, overrides)
    method = str(asked.get("method") or published.get("method") or RunConfig.model_fields["method"].default)
    # A published recipe has settings for methods that this run may not use; a user's settings must all be used.
    useful = {name: values for name, values in published.get("settings", {}).items() if name in names_in(method)}
    return validate(merge({**published, "settings": useful}, {**asked, "protocol": protocol}))


def _gather_method_settings(layer: Layer) -> dict[str, Any]:
    """``ucd: {…}`` at the top level, as ``--ucd.temperature`` gives it, means ``settings: {ucd: {…}}``."""
    known = RunConfig.model_fields
    methods = {key: value for key, value in layer.items() if key not in known and isinstance(value, Mapping)}
    rest = {key: value for key, value in layer.items() if key not in methods}
    return merge(rest, {"settings": methods}) if methods else rest


def merge(base: Layer, top: Layer) -> dict[str, Any]:
    """``base`` with the values of ``top`` in place of its own, section by section."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration, as it is written to the run's folder."""
    return sealed_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def from_yaml(path: Path) -> RunConfig:
    """Read a run's ``config.yaml``."""
    require_intact_text(read_text(path), path)
    try:
        return validate(_read_yaml(path))
    except InputError as error:
        raise InputError(f"{error} (in {path})") from None


def _published(name: str) -> dict[str, Any]:
    path = recipe_folder() / f"{name}.yaml"
    return _gather_method_settings(_read_yaml(path)) if path.is_file() else {}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(read_text(path))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InputError(f"{path} must hold settings by name, such as 'protocol: voc/15-5/overlapped'.")
    return values
