"""Which precision a run has, and gradients under a loss scale."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision

from incseg.config import EngineConfig, RunConfig, from_yaml
from incseg.engine import precision
from incseg.engine.assembly import launch, train
from incseg.engine.checkpoint import Checkpoint
from incseg.engine.precision import load_scale, lower_scale, precision_here, scale_state, unscale
from incseg.errors import InputError
from incseg.run_folder import RunFolder

MakeConfig = Callable[..., RunConfig]


@pytest.mark.parametrize(
    ("accelerator", "has_gpu", "has_bf16", "expected"),
    [
        ("auto", False, False, "32-true"),
        ("auto", True, True, "bf16-mixed"),
        ("cuda", True, False, "16-mixed"),
        ("cpu", True, True, "32-true"),
        ("mps", False, False, "32-true"),
    ],
)
def test_auto_is_the_shortest_type_that_the_device_has(
    accelerator: str, has_gpu: bool, has_bf16: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bf16)
    assert precision_here(EngineConfig.model_validate({"accelerator": accelerator})) == expected
    chosen = EngineConfig.model_validate({"accelerator": accelerator, "precision": "32-true"})
    assert precision_here(chosen) == "32-true"


def test_float16_on_a_cpu_is_refused() -> None:
    with pytest.raises(InputError, match="16-mixed is for GPUs: use bf16-mixed or 32-true here"):
        precision_here(EngineConfig(accelerator="cpu", precision="16-mixed"))


def test_a_run_states_what_auto_was_and_is_not_resumed_in_another(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quick_config("ft", task="offline", optim={"epochs": 1, "batch_size": 4})
    assert config.engine.precision == "auto"
    train(config, tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["settings"]["engine.precision"] == "32-true"
    assert from_yaml(tmp_path / "config.yaml").engine.precision == "32-true"
    monkeypatch.setattr(precision, "precision_here", lambda _: "bf16-mixed")
    with pytest.raises(InputError, match=r"engine\.precision is 32-true there and bf16-mixed here"):
        train(config, tmp_path)


def with_scale(scale: float) -> tuple[Fabric, torch.amp.GradScaler]:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    return Fabric(accelerator="cpu", plugins=MixedPrecision("16-mixed", "cpu", scaler)), scaler


def updated(fabric: Fabric, scaler: torch.amp.GradScaler) -> float:
    """The scale after one more iteration with a finite gradient."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum()).backward()
    unscale(fabric, optimizer)
    scaler.update()
    return scaler.get_scale()


def test_a_resumed_run_has_the_loss_scale_with_which_it_stopped(tmp_path: Path) -> None:
    fabric, scaler = with_scale(1024.0)
    assert updated(fabric, scaler) == 1024.0
    Checkpoint(0, 1, {}, {}, {}, scale=scale_state(fabric)).save(RunFolder(tmp_path))
    saved = Checkpoint.load(RunFolder(tmp_path), step=0)
    assert saved is not None
    resumed, resumed_scaler = with_scale(8.0)
    load_scale(resumed, saved.scale)
    assert updated(resumed, resumed_scaler) == updated(fabric, scaler) == 2048.0, "the second finite one in a row"


def test_gradients_are_unscaled_before_they_are_looked_at() -> None:
    fabric, scaler = with_scale(1024.0)
    layer = torch.nn.Linear(2, 1, bias=False)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=1.0))
    before = layer.weight.detach().clone()
    fabric.backward(layer.weight.sum())
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[1024.0, 1024.0]]
    unscale(fabric, optimizer.optimizer)
    assert layer.weight.grad.tolist() == [[1.0, 1.0]]
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before - 1)
    optimizer.zero_grad()
    fabric.backward(layer.weight.sum() * math.inf)
    unscale(fabric, optimizer.optimizer)
    assert lower_scale(fabric)
    assert scaler.get_scale() == 512.0
    optimizer.zero_grad()
    fabric.backward(layer.weight.sum() + math.inf)  # a loss that no other scale would make finite
    unscale(fabric, optimizer.optimizer)
    assert not lower_scale(fabric)
    assert scaler.get_scale() == 512.0
    assert model is not None


def test_without_a_scale_nothing_is_done() -> None:
    fabric = Fabric(accelerator="cpu")
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.full((1,), math.nan)
    unscale(fabric, torch.optim.SGD([weight], lr=1.0))
    assert not lower_scale(fabric)
    load_scale(fabric, {"scale": 2.0})
    assert scale_state(fabric) == {}


def test_lightnings_remarks_on_the_precision_are_not_shown(
    quick_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda _, record: said.append(record.getMessage()))
    launch(quick_config("ft", engine={"accelerator": "cpu", "precision": "bf16-mixed"}))
    assert not said
