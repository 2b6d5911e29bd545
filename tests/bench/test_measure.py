import statistics
from types import SimpleNamespace

import pytest
import torch
from torch.utils.benchmark import Timer

from incseg.bench import measure
from incseg.bench.measure import median_milliseconds, median_milliseconds_in_turns, peak_extra_bytes

CPU = torch.device("cpu")


def test_peak_memory_sees_what_a_step_takes() -> None:
    def step() -> None:
        torch.ones(1 << 23).sum()

    extra = peak_extra_bytes(step, CPU)
    assert extra is None or 30 << 20 < extra < 60 << 20


def test_a_slow_step_is_repeated_three_times_and_its_median_is_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    durations: list[float] = []

    class StubTimer:
        def timeit(self, number: int) -> SimpleNamespace:
            return SimpleNamespace(median=2.0 / number)

        def blocked_autorange(self, min_run_time: float) -> SimpleNamespace:
            durations.append(min_run_time)
            return SimpleNamespace(median=0.25)

    monkeypatch.setattr(measure, "_timer", lambda _: StubTimer())
    assert median_milliseconds(lambda: None, CPU, seconds=0.5) == 250
    assert median_milliseconds(lambda: None, CPU, seconds=60) == 250
    assert durations == [6.0, 60]


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
