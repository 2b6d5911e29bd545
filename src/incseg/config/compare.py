"""Which settings make another experiment, and in which setting two runs differ."""

from collections.abc import Mapping
from typing import Any

from incseg.config.settings import DataConfig, EngineConfig, RunConfig

OF_METHOD = "settings."
"""How the flat settings of methods begin. A result names these only where a recipe or a person chose them."""

# Settings that only decide how a trained model is scored: "incseg eval" can choose them anew.
SCORING = {f"data.{name}" for name in DataConfig.SCORING}

# What "incseg eval" takes.
RESCORING = SCORING | {"data.on_error", "engine.score_batch_size"}

# Settings that do not change the result: where the data is, and how the machine works. The precision does change it,
# and so does accumulation: batch normalisation then sees less at a time.
RUNTIME_ONLY = {
    "data.root", "data.workers", "data.cache", "data.changed", "data.on_error",
    *(f"engine.{name}" for name in EngineConfig.model_fields if name not in ("precision", "accumulate")),
}  # fmt: skip


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"optim": {"epochs": 3}}`` → ``{"optim.epochs": 3}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Every setting that belongs to the experiment, dotted."""
    everything = flatten(config.model_dump(mode="json"))
    return {name: value for name, value in everything.items() if name not in RUNTIME_ONLY}


def result_settings(config: RunConfig) -> dict[str, Any]:
    """What a result has among its settings: these have fields of their own there."""
    own = ("protocol", "method", "seed")
    return {name: value for name, value in flat_settings(config).items() if name not in own}


def differing_setting(there: RunConfig, here: RunConfig, ignoring: tuple[str, ...] = ()) -> str:
    """The first setting in which two runs differ, in words; empty if they are the same experiment."""
    one, two = flat_settings(there), flat_settings(here)
    for name in sorted(one.keys() | two.keys()):
        if one.get(name) != two.get(name) and not name.startswith(ignoring):
            return f"{name} is {one.get(name)} there and {two.get(name)} here"
    return ""
