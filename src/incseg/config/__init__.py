"""The configuration of a run: validated, layered from recipes, and written beside the result."""

from incseg.config.compare import SCORING, differing_setting, flat_settings
from incseg.config.recipes import Layer, from_yaml, load_recipe, merge, recipe_folder, recipe_names, to_yaml
from incseg.config.settings import (
    DataConfig,
    EngineConfig,
    ModelConfig,
    Network,
    OptimConfig,
    RunConfig,
    Section,
    as_text,
    names_in,
    read_setting,
    section_types,
    setting_names,
    validate,
)

__all__ = [
    "SCORING",
    "DataConfig",
    "EngineConfig",
    "Layer",
    "ModelConfig",
    "Network",
    "OptimConfig",
    "RunConfig",
    "Section",
    "as_text",
    "differing_setting",
    "flat_settings",
    "from_yaml",
    "load_recipe",
    "merge",
    "names_in",
    "read_setting",
    "recipe_folder",
    "recipe_names",
    "section_types",
    "setting_names",
    "to_yaml",
    "validate",
]
