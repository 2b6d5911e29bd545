"""Being asked to stop, and stopping so that nothing is lost."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from command_line import run
from incseg.config import RunConfig
from incseg.engine import signals
from incseg.engine.assembly import train
from incseg.engine.journal import Journal
from incseg.engine.signals import StopRequests
from incseg.errors import Stopped, TrainingError
from incseg.loading.loaders import _begin_process
from incseg.methods import Method

MakeConfig = Callable[..., RunConfig]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_outside_of_training_a_signal_stops_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=rf"{number.name}\); run the same command again"), StopRequests().heard():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_signal_at_the_very_end_stops_too_and_leaves_no_handler_behind() -> None:
    class Late(StopRequests):
        @contextmanager
        def _limited(self, max_time: float | None) -> Iterator[None]:  # noqa: ARG002
            yield
            signal.raise_signal(signal.SIGUSR1)

    before = signal.getsignal(signal.SIGUSR1)
    stop, reached = Late(), []
    with pytest.raises(Stopped, match="SIGUSR1"), stop.heard():
        reached.append(True)
    assert reached
    assert signal.getsignal(signal.SIGUSR1) is before
    with pytest.raises(Stopped), stop.heard():
        signal.raise_signal(signal.SIGTERM)  # it can listen again


def test_inside_it_is_noted_and_obeyed_at_the_end_at_the_latest() -> None:
    stop, reached = StopRequests(), []
    with pytest.raises(Stopped), stop.heard(), stop.deferred():  # noqa: PT012 - what comes after the signal is the test
        signal.raise_signal(signal.SIGTERM)
        reached.append(stop.reason)
    assert reached == ["a request to stop (SIGTERM)"]


def test_the_time_limit_is_a_signal_too() -> None:
    with pytest.raises(Stopped, match=r"the end of --engine\.max-time"), StopRequests().heard(max_time=0.001):
        signal.pause()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def signalled_at(iteration: int) -> Callable[..., None]:
    original = Journal.log

    def log(self: Journal, name: str, done: int, *rest: Any) -> None:
        original(self, name, done, *rest)
        if (name, done) == ("step 0", iteration):
            signal.raise_signal(signal.SIGUSR1)

    return log


def test_a_stopped_run_has_saved_and_ends_like_one_that_was_not(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quick_config("mib", engine={"accelerator": "cpu", "log_every": 1, "pictures": 0, "checkpoint_every": 100})
    train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "log", signalled_at(3))
        with pytest.raises(Stopped, match="SIGUSR1"):
            train(config, tmp_path / "stopped")
    saved = torch.load(tmp_path / "stopped" / "checkpoint.pt", weights_only=True)
    assert (saved["step"], saved["iteration"]) == (0, 3)
    assert not (tmp_path / "stopped" / ".lock").exists()
    train(config, tmp_path / "stopped")
    for name in ("result.json", "metrics.jsonl", "step-1/model.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_exit_code_of_a_stopped_command_is_75(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise Stopped("stopped.")

    monkeypatch.setattr("incseg.cli._run", stopped)
    assert run("train") == Stopped.EXIT_CODE == 75
    assert capsys.readouterr().err == "incseg: stopped.\n"


def poisoned(at: set[int]) -> Callable[..., Any]:
    """A method whose loss is not a number in some iterations of its life."""
    original, calls = Method.losses, iter(range(1, 1000))

    def losses(self: Method, view: Any) -> dict[str, Any]:
        terms = original(self, view)
        factor = float("nan") if next(calls) in at else 1.0
        return {name: value * factor for name, value in terms.items()}

    return losses


def test_an_update_that_is_not_finite_is_skipped_and_named(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Method, "losses", poisoned({2, 3}))
    config = quick_config("ewc", task="offline")
    train(config, tmp_path)
    said = [line for line in capsys.readouterr().out.splitlines() if "skipped" in line]
    assert [line.split(":")[0] for line in said] == ["step 0, iteration 2", "step 0, iteration 3"]
    assert all("segmentation is nan; the update is skipped. Its images: 0" in line for line in said)
    for name in ("model", "memory"):
        assert all(value.isfinite().all() for value in load_file(tmp_path / "step-0" / f"{name}.safetensors").values())


def test_too_many_in_a_row_stop_the_run_with_the_last_good_checkpoint(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Method, "losses", poisoned({3, 4, 5}))
    engine = {"accelerator": "cpu", "log_every": 1, "pictures": 0, "checkpoint_every": 1, "max_skipped": 2}
    with pytest.raises(TrainingError, match=r"no longer finite at step 0, iteration 5 .* 3 updates in a row"):
        train(quick_config("ft", engine=engine), tmp_path)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["iteration"] == 2


def test_without_the_signals_of_unix_the_time_limit_and_a_request_still_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: no SIGUSR1, no SIGALRM, no timer of the system."""
    monkeypatch.delattr(signal, "setitimer")
    members = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
    monkeypatch.setattr(signals, "known_signals", lambda *names: [members[name] for name in names if name in members])
    with pytest.raises(Stopped, match=r"SIGTERM"), StopRequests().heard(max_time=100):
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped, match=r"the end of --engine\.max-time"), StopRequests().heard(max_time=0.001):
        for _ in range(10**9):
            pass


def test_workers_leave_requests_to_stop_to_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = list[int]()
    monkeypatch.setattr(signal, "signal", lambda number, _: ignored.append(number))
    _begin_process(0)
    assert ignored == [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


def test_lock_and_signals_can_be_imported_where_those_of_unix_are_missing() -> None:
    program = (
        "import enum, signal, sys; sys.modules['fcntl'] = None\n"
        "for name in ('SIGUSR1', 'SIGALRM', 'setitimer', 'ITIMER_REAL', 'pause'): delattr(signal, name)\n"
        "signal.Signals = enum.IntEnum('Signals', {'SIGTERM': 15, 'SIGINT': 2})\n"
        "import incseg.engine.signals as signals, incseg.engine.lock\n"
        "from incseg.system_signals import REQUESTS_TO_STOP, known_signals\n"
        "assert (known_signals(*signals.REASONS), REQUESTS_TO_STOP) == ([15], [2, 15])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
