import pytest
import torch

from incseg.bench import gathering
from incseg.bench.gathering import benchmark_extend


def test_the_cost_of_an_extension_is_told_in_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "HEIGHT", 64)
    monkeypatch.setattr(gathering, "WIDTH", 64)
    monkeypatch.setattr(gathering, "BATCHES", 1)
    monkeypatch.setattr(gathering, "ROUNDS", 1)
    threads = torch.get_num_threads()
    table = benchmark_extend("test_resnet", widths=[32], device="cpu")
    assert torch.get_num_threads() == threads
    width = int(table.rows[0][0].split()[0])
    assert width >= 1024
    assert [row[0] for row in table.rows] == [f"{width} (default)", f"{width} (default), mirrored too", "32"]
    plain, mirrored, narrow = (float(row[2]) for row in table.rows)
    assert 0 < narrow < mirrored
    assert 0 < plain < mirrored
    assert float(table.rows[0][4]) == pytest.approx(8 * (width * (width + 1) / 2 + width * 21) / 1e6, abs=0.1)
