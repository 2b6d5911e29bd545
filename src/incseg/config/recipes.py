"""Recipes: settings in layers, from the published YAML files, the user's own file, and the command line."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from incseg.checksums import require_intact_text, sealed_text
from incseg.config.compare import OF_METHOD, flatten
from incseg.config.settings import CODE, RunConfig, as_text, names_in, validate
from incseg.config.strict_yaml import read_yaml
from incseg.errors import InputError, closest
from incseg.protocol import Protocol
from incseg.registry import installed_generators

Layer = Mapping[str, Any]

CONDITIONAL = ("methods", "presets")  # settings for when a method takes part, and for when they are asked for by name
IMAGES = "images-per-step"
LONGEST_NAME = 200  # letters: what is longer is no name, and too long for a file
BELONGS_TO = {"decoder_options": "decoder"}  # what is said of one decoder is not meant for another
NOT_RECIPES = ("defaults", IMAGES)


def recipe_folder() -> Path:
    """The folder of the published recipes: inside an installed package, or at the top of a checkout."""
    installed = Path(__file__).parents[1] / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "recipes"


def recipe_names() -> list[str]:
    """Every published recipe, as one may write it after ``incseg train``."""
    files = sorted(file for file in recipe_folder().rglob("*.yaml") if file.stem not in NOT_RECIPES)
    return [file.relative_to(recipe_folder()).with_suffix("").as_posix() for file in files]


def load_recipe(recipe: str, overrides: Layer | None = None, *, trust: bool = False) -> RunConfig:
    """The configuration of a recipe, with overrides on top.

    A recipe is a protocol (``voc/15-5/overlapped``), the name of a published recipe (``demo``), or a YAML file with
    any of the settings of :class:`RunConfig`. Later layers win: the defaults of the settings, the published files
    ``recipes/defaults.yaml``, ``recipes/DATASET/defaults.yaml`` and the protocol's own, each with what it says for the
    methods that take part, the presets asked for (``preset``), the given file, the overrides.

    The given file may come from anyone, so it may not name code to run, unless ``trust`` says that it may.
    """
    overrides = _gather_method_settings(overrides or {})
    own = _gather_method_settings(read_yaml(Path(recipe))) if recipe.endswith((".yaml", ".yml")) else {}
    if not trust:
        _refuse_code(own, overrides, recipe)
    named = _published(recipe) if not own else {}
    protocol = overrides.get("protocol") or own.get("protocol") or named.get("protocol") or recipe
    if own and protocol == recipe:
        raise InputError(f"{recipe} names no protocol: add a line such as 'protocol: voc/15-5/overlapped'.")
    protocol = str(Protocol.parse(str(protocol)))
    published = [*_published_layers(protocol), named]
    asked = merge(own, overrides)
    presets = _preset_names(asked.pop("preset", ()))
    methods = [str(layer["method"]) for layer in (*published, asked) if layer.get("method")]
    method = methods[-1] if methods else RunConfig.model_fields["method"].default
    taking_part = names_in(method)
    above = merge(_of_presets(published, method, taking_part, presets), {**asked, "protocol": protocol})
    return validate(merge(_for_methods(published, taking_part, above), above))


def _preset_names(given: object) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f"preset cannot be {given!r}: it takes the name of a preset, or a list of names.")
    return list(names)


def _refuse_code(file: object, overrides: object, path: str, owner: str = "") -> None:
    """Refuse a file that names code at any depth, unless the overrides name the code in its place.

    What an installed package offers by name is no code of the file's: the person has installed it.
    """
    for key, value in file.items() if isinstance(file, Mapping) else ():
        above = overrides.get(key) if isinstance(overrides, Mapping) else None
        is_code = key == CODE and owner and value is not None and above is None
        if is_code and str(value) not in installed_generators():
            raise InputError(
                f"{path} names code to run ({key}: {value}), which a file may not: if you know what it does, add "
                f"--{owner}.{key} {value}, or --trust to let this file name it."
            )
        _refuse_code(value, above, path, str(key))


def _published_layers(protocol: str) -> list[dict[str, Any]]:
    """All that the published files say of a protocol, with what they say under ``methods`` and ``presets``."""
    dataset = protocol.split("/", maxsplit=1)[0]
    return [_published(name) for name in ("defaults", f"{dataset}/defaults", protocol)]


def _for_methods(published: Sequence[Layer], taking_part: Collection[str], above: Layer) -> dict[str, Any]:
    """The published settings: those of each file, then those that it has for the methods that take part.

    A published recipe may have settings of methods that this run does not use, which are left out.
    """
    chosen: dict[str, Any] = {}
    for index, layer in enumerate(published):
        brought = {name: brings for name, brings in layer.get("methods", {}).items() if name in taking_part}
        _refuse_contradiction(brought, [*(_unconditional(later) for later in published[index + 1 :]), above])
        for part in (_unconditional(layer), *brought.values()):
            chosen = merge(chosen, part)
    chosen["settings"] = _settings_of(chosen, taking_part)
    return chosen


def _unconditional(layer: Layer) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name not in CONDITIONAL}


def _refuse_contradiction(brought: Mapping[str, Layer], above: Sequence[Layer]) -> None:
    """Refuse two methods of a sum that bring different values of a setting, unless a later layer has one."""
    decided = {name for layer in above for name in flatten(layer)}
    found: dict[str, tuple[str, object]] = {}
    for method, layer in brought.items():
        for name, value in flatten(layer).items():
            other, theirs = found.setdefault(name, (method, value))
            if theirs != value and name not in decided:
                option = name.removeprefix(OF_METHOD).replace("_", "-")
                raise InputError(
                    f"'{other}' and '{method}' come with different settings: {name} is {as_text(theirs)} for "
                    f"'{other}' and {as_text(value)} for '{method}'; decide with --{option} VALUE."
                )


def _of_presets(
    published: Sequence[Layer], method: str, taking_part: Collection[str], presets: Sequence[str]
) -> dict[str, Any]:
    """The settings of the presets asked for; one of which nothing is left for this method is refused."""
    available: dict[str, Any] = {}
    for layer in published:
        available = merge(available, layer.get("presets", {}))
    chosen: dict[str, Any] = {}
    for name in presets:
        if name not in available:
            raise InputError(f"there is no preset '{name}' here: use {', '.join(available)}.{closest(name, available)}")
        layer = {**available[name], "settings": _settings_of(available[name], taking_part)}
        if not any(layer.values()):
            raise InputError(f"the preset '{name}' has no setting for the method '{method}': leave it out.")
        chosen = merge(chosen, layer)
    return chosen


def _settings_of(layer: Layer, methods: Collection[str]) -> dict[str, Any]:
    return {name: values for name, values in layer.get("settings", {}).items() if name in methods}


def published_presets() -> list[tuple[str, str, dict[str, Any]]]:
    """Name, dataset (or "all") and settings, dotted, of every preset."""
    files = sorted(recipe_folder().rglob("defaults.yaml"), key=lambda file: (len(file.parts), file))
    found = []
    for file in files:
        place = file.parent.relative_to(recipe_folder()).as_posix()
        for name, layer in _published(f"{place}/defaults").get("presets", {}).items():
            sections = {**layer, **layer.get("settings", {})}
            values = {f"{s}.{key}": v for s, keys in sections.items() if s != "settings" for key, v in keys.items()}
            found.append((name, "all" if place == "." else place, values))
    return found


def published_name(protocol: str, class_order: Sequence[str] | None) -> str:
    """The published recipe of a protocol in a class order: ``ade20k/100-50-b/disjoint``; empty if there is none."""
    dataset, task, setting = str(Protocol.parse(protocol)).split("/")
    order = "" if class_order in (None, ("a",), ["a"]) else f"-{','.join(class_order or ())}"
    name = f"{dataset}/{task}{order}/{setting}"
    return name if name in {*recipe_names(), *_images_per_step()} else ""


def published_images(protocol: str, class_order: Sequence[str] | None) -> list[int] | None:
    """How many training images each step has in the published lists; None if none are published."""
    return _images_per_step().get(published_name(protocol, class_order))


@cache
def _images_per_step() -> dict[str, list[int]]:
    return read_yaml(recipe_folder() / f"{IMAGES}.yaml")


def _gather_method_settings(layer: Layer) -> dict[str, Any]:
    """``ucd: {…}`` at the top level, as ``--ucd.temperature`` gives it, means ``settings: {ucd: {…}}``."""
    known = {*RunConfig.model_fields, *CONDITIONAL}
    methods = {key: value for key, value in layer.items() if key not in known and isinstance(value, Mapping)}
    rest = {key: value for key, value in layer.items() if key not in methods}
    return merge(rest, {"settings": methods}) if methods else rest


def merge(base: Layer, top: Layer) -> dict[str, Any]:
    """``base`` with the values of ``top`` in place of its own, section by section.

    A layer that does not name a decoder may have options of it all the same: those of the one in a layer below.
    """
    stale = {name for name, owner in BELONGS_TO.items() if _another(base.get(owner), top.get(owner))}
    merged = {name: value for name, value in base.items() if name not in stale}
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _another(below: object, above: object) -> bool:
    """Whether both name something, and not the same; capitals do not matter."""
    return None not in (below, above) and str(below).lower() != str(above).lower()


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration, as it is written to the run's folder."""
    return sealed_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def from_yaml(path: Path) -> RunConfig:
    """Read a run's ``config.yaml``."""
    values = read_yaml(path, check=require_intact_text)
    try:
        return validate(values)
    except InputError as error:
        raise InputError(f"{error} (in {path})") from None


def _published(name: str) -> dict[str, Any]:
    path = recipe_folder() / f"{name}.yaml"
    if len(name) > LONGEST_NAME or ".." in path.parts or not path.is_relative_to(recipe_folder()) or not path.is_file():
        return {}  # a file elsewhere is not ours: it is read as the user's own, by its name with .yaml
    layer = _gather_method_settings(read_yaml(path))
    for part in CONDITIONAL:
        layer[part] = {key: _gather_method_settings(inner) for key, inner in layer.get(part, {}).items()}
    return layer
