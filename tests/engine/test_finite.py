"""Updates that are not finite leave no trace, whether the device decides or the host."""

from typing import Any, cast

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from incseg.engine.finite import UpdateGuard, Verdict


def guarded(*, fused: bool, limit: int = 3) -> UpdateGuard:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=fused or None)
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


def test_both_ways_make_the_same_updates() -> None:
    host, device = guarded(fused=False), guarded(fused=True)
    assert host.waits
    assert not device.waits
    for iteration, factor in enumerate([1, 1, torch.inf, 1]):
        for guard in (host, device):
            iterate(guard, iteration, factor=factor)
    for one, other in zip(state(host), state(device), strict=True):
        torch.testing.assert_close(one, other)


def test_too_many_in_a_row_are_counted_up_to_each_verdict() -> None:
    guard = guarded(fused=True, limit=1)
    for iteration in range(3):
        iterate(guard, iteration, factor=torch.nan if iteration else 1)
    assert [guard.exhausted(iterations=100) for _ in guard.read()] == [False, True]
