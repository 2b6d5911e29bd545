"""Updates that are not finite leave no trace, whether the device decides or the host."""

from typing import Any, cast

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from incseg.config import OptimConfig
from incseg.engine.finite import UpdateGuard, Verdict
from incseg.engine.optimizer import build_optimizer


def guarded(*, fused: bool, limit: int = 3) -> UpdateGuard:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    optim = OptimConfig(learning_rate=0.1, momentum=0.9, weight_decay=0.0)
    optimizer = build_optimizer(student, optim, fused=fused)
    model, wrapped = Fabric(accelerator="cpu", devices=1).setup(student, optimizer)
    return UpdateGuard(student, model, cast(Any, wrapped), limit)


def iterate(guard: UpdateGuard, iteration: int, *, factor: float = 1.0) -> None:
    images = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(iteration))
    loss = factor * guard.model(images).square().mean()
    loss.backward()
    guard.update(Verdict(iteration, {"segmentation": loss}, guard.judge({"segmentation": loss})))
    guard.optimizer.zero_grad()


def state(guard: UpdateGuard) -> list[torch.Tensor]:
    moments = [value["momentum_buffer"] for value in guard.optimizer.optimizer.state.values()]
    floats = [value for value in guard.student.state_dict().values() if value.is_floating_point()]
    return [value.clone() for value in [*floats, *moments]]


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_update_changes_nothing(fused: bool) -> None:
    guard = guarded(fused=fused)
    iterate(guard, 0)
    before = state(guard)
    iterate(guard, 1, factor=torch.nan)
    assert all(torch.equal(now, then) for now, then in zip(state(guard), before, strict=True))
    iterate(guard, 2)
    assert not torch.equal(state(guard)[0], before[0]), "the next one counts again"
    assert [verdict.iteration for verdict in guard.read()] == [1]
    assert guard.in_a_row == 0
    assert not list(guard.read()), "read once"


@pytest.mark.parametrize("factors", [(1, 1, torch.inf, 1), (torch.nan, 1, 1)])
def test_both_ways_make_the_same_updates(factors: tuple[float, ...]) -> None:
    host, device = guarded(fused=False), guarded(fused=True)
    assert host.waits
    assert not device.waits
    used = [torch.full((size,), 1e30) for size in range(1, 65)]  # what freshly allocated memory may hold
    del used
    for iteration, factor in enumerate(factors):
        for guard in (host, device):
            iterate(guard, iteration, factor=factor)
    for one, other in zip(state(host), state(device), strict=True):
        torch.testing.assert_close(one, other)


def test_statistics_that_a_checkpoint_brought_are_those_to_go_back_to() -> None:
    guard = guarded(fused=True)
    norm = cast(nn.BatchNorm2d, guard.student[1])  # type: ignore[index]
    assert norm.running_mean is not None
    norm.running_mean.fill_(7)
    guard.keep_statistics()
    iterate(guard, 0, factor=torch.nan)
    assert norm.running_mean.tolist() == [7, 7]


def test_gradients_that_a_graph_writes_over_are_kept_apart() -> None:
    guard = guarded(fused=False)
    static = {parameter: torch.ones_like(parameter) for parameter in guard.student.parameters()}
    for parameter, gradient in static.items():
        parameter.grad = gradient.detach()  # as a replayed graph returns them
    guard.own_gradients()
    for parameter, gradient in static.items():
        gradient.fill_(5)  # the next replay
        assert parameter.grad is not None
        parameter.grad += gradient
        assert parameter.grad.unique().tolist() == [6]


def test_too_many_in_a_row_are_counted_up_to_each_verdict() -> None:
    guard = guarded(fused=True, limit=1)
    for iteration in range(3):
        iterate(guard, iteration, factor=torch.nan if iteration else 1)
    assert [guard.exhausted(iterations=100) for _ in guard.read()] == [False, True]
