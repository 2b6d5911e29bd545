import os
from pathlib import Path

import pytest

from incseg.bench import loader
from incseg.bench.loader import benchmark_loader
from incseg.errors import InputError


def test_files_by_processes_and_images_kept_are_measured(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "SECONDS", 0.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    settings = {"data": {"crop_size": 64}, "optim": {"batch_size": 4}}
    table = benchmark_loader("folder/2-2/overlapped", tiny_folder, "cpu", settings)
    files = [f"files, {count}" for count in ("no loading processes", "1 loading process", "2 loading processes")]
    assert [row[0] for row in table.rows] == [*files, "RAM, 2 loading processes"]
    assert all(float(row[1]) > 0 for row in table.rows)
    assert table.title.startswith("crops of 64 pixels")


def test_a_batch_far_above_the_number_of_images_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match="is far above the"):
        benchmark_loader("folder/2-2/overlapped", tiny_folder, "cpu", {"optim": {"batch_size": 10**6}})
