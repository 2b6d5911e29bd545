import statistics
import time

import pytest
import torch
from torch.utils.benchmark import Timer

from incseg.bench.measure import median_milliseconds, median_milliseconds_in_turns, peak_extra_bytes

CPU = torch.device("cpu")


def test_peak_memory_sees_what_a_step_takes() -> None:
    def step() -> None:
        torch.ones(1 << 23).sum()

    extra = peak_extra_bytes(step, CPU)
    assert extra is None or 30 << 20 < extra < 60 << 20


def test_the_median_is_in_milliseconds() -> None:
    durations: list[float] = []

    def step() -> None:
        began = time.perf_counter()
        time.sleep(0.002)
        durations.append(time.perf_counter() - began)

    found = median_milliseconds(step, CPU, seconds=0.02)
    assert len(durations) >= 3
    assert 1e3 * min(durations) <= found <= 1e3 * max(durations) + 1


def test_steps_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    timeit = Timer.timeit

    def recorded(timer: Timer, number: int) -> object:
        order.append("|")
        return timeit(timer, number)

    monkeypatch.setattr(Timer, "timeit", recorded)
    times = median_milliseconds_in_turns([lambda: order.append("a"), lambda: order.append("b")], rounds=3, repeats=2)
    turns = "".join(order).strip("|").split("|")
    assert [set(turn) for turn in turns] == [{"a"}, {"b"}] * 3
    assert all(len(turn) >= 2 for turn in turns)
    assert len(times) == 2
    assert statistics.fmean(times) > 0
