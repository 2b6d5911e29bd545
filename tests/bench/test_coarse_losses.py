import pytest

from command_line import run
from incseg.bench import coarse_losses
from incseg.bench.coarse_losses import LOSSES, benchmark_losses


@pytest.fixture(autouse=True)
def without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coarse_losses, "BATCH", 1)
    monkeypatch.setattr(coarse_losses, "CPU_SIZES", ((2, 16),))
    times = iter([6.0, 2.0] * len(LOSSES))
    monkeypatch.setattr(coarse_losses, "median_milliseconds", lambda step, _: step() or next(times))
    monkeypatch.setattr(coarse_losses, "peak_extra_bytes", lambda step, _: step() or 3 * 2**20)


def test_every_loss_is_measured_in_every_way() -> None:
    table = benchmark_losses("cpu")
    assert [row[0] for row in table.rows] == [name for name in LOSSES for _ in range(2)]
    assert table.rows[0][1:] == ["2² → 16²", "interpolation", "6.000", "1.0", "3.0"]
    assert table.rows[1][1:] == ["2² → 16²", "matrix products", "2.000", "3.0", "3.0"]


def test_the_command_shows_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "losses", "--device", "cpu") == 0
    assert "unbiased distillation" in capsys.readouterr().out
