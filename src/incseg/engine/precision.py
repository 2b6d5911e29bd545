"""The numerical precision of a run: what ``auto`` means on this machine, and the loss scale that float16 needs."""

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim import Optimizer

from incseg.config import EngineConfig, RunConfig
from incseg.errors import InputError

if TYPE_CHECKING:  # a study is planned without Lightning, which takes seconds to import
    from lightning.fabric import Fabric

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


def with_precision(config: RunConfig) -> RunConfig:
    """The configuration with the precision that ``auto`` means here, as it is written beside the result."""
    engine = config.engine.model_copy(update={"precision": precision_here(config.engine)})
    return config.model_copy(update={"engine": engine})


def precision_here(engine: EngineConfig) -> Precision:
    """bfloat16 where the GPU computes in it, float16 on older GPUs, float32 elsewhere; or what the settings say."""
    on_gpu = engine.accelerator == "cuda" or (engine.accelerator == "auto" and torch.cuda.is_available())
    if engine.precision == "16-mixed" and not on_gpu:
        raise InputError("--engine.precision 16-mixed is for GPUs: use bf16-mixed or 32-true here, or leave it out.")
    if engine.precision != "auto":
        return engine.precision
    if not on_gpu or not torch.cuda.is_available():
        return "32-true"
    return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"


def unscale(fabric: "Fabric", optimizer: Optimizer) -> None:
    """After the backward pass: give gradients the size they have without the loss scale, before anyone looks at them.

    Small gradients would vanish in float16, so with it Fabric multiplies the loss; with other types nothing is done.
    """
    scaler = _scaler(fabric)
    if scaler is not None:
        scaler.unscale_(optimizer)


def lower_scale(fabric: "Fabric") -> bool:
    """In place of the optimizer's step, when a gradient was not finite: halve the loss scale for the next iteration.

    Returns whether it was halved: a loss that is not finite by itself may have gradients that are, and no other scale
    would help.
    """
    scaler = _scaler(fabric)
    if scaler is None:
        return False
    before = scaler.get_scale()
    scaler.update()
    return scaler.get_scale() < before


def scale_state(fabric: "Fabric") -> dict[str, Any]:
    """The loss scale and since when it holds, for a checkpoint; empty where there is none."""
    scaler = _scaler(fabric)
    return {} if scaler is None else scaler.state_dict()


def load_scale(fabric: "Fabric", state: dict[str, Any]) -> None:
    """Restore what :func:`scale_state` returned."""
    scaler = _scaler(fabric)
    if scaler is not None and state:
        scaler.load_state_dict(state)


def _scaler(fabric: "Fabric") -> torch.amp.GradScaler | None:
    scaler: torch.amp.GradScaler | None = getattr(fabric.strategy.precision, "scaler", None)
    return scaler
