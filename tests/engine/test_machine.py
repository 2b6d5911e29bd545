import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from incseg.config import RunConfig
from incseg.engine.assembly import train
from incseg.engine.cores import FIRST_STEP_THREADS
from incseg.engine.machine import threads_of_step, whole_memory
from incseg.engine.trainer import Trainer
from incseg.errors import TrainingError

TENSORS, PAGES = 20, 4096  # each tensor has 16 MB, which are that many pages of 4 kB


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_freed_memory_is_kept_for_the_next_iteration() -> None:
    """Pages that the system maps anew are counted; without, every tensor takes all of its own anew.

    In a process of its own: what other tests have left in this one decides where its tensors fit.
    """
    program = (
        "import resource, torch; from incseg.engine.machine import keep_freed_memory\n"
        "def mapped_by_tensors():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        f"    together = [torch.ones({PAGES} * 1024) for _ in range({TENSORS})]\n"
        "    del together\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "keep_freed_memory()\n"
        "print(mapped_by_tensors(), mapped_by_tensors())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = map(int, ended.stdout.split())
    assert second < TENSORS * PAGES / 4 < first


def test_a_loading_process_killed_during_an_iteration_is_told_in_a_sentence(
    quick_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Trainer) -> None:
        raise RuntimeError("DataLoader worker (pid 12345) is killed by signal: Killed. ")

    monkeypatch.setattr(Trainer, "run", run)
    with pytest.raises(TrainingError, match=r"was killed.*--data\.workers"):
        train(quick_config("ft"), tmp_path)


@pytest.mark.parametrize(("told", "step", "expected"), [("3", 0, 3), ("3", 1, 1), ("", 0, 1)])
def test_a_step_0_that_others_wait_for_has_more_threads(
    told: str, step: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = torch.get_num_threads()
    monkeypatch.setenv(FIRST_STEP_THREADS, told)
    torch.set_num_threads(1)
    try:
        with threads_of_step(step):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(usual)


def test_a_container_s_limit_is_all_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    for limit, memory in [("1000000\n", 1_000_000), ("max\n", 4_096_000), ("9000000\n", 4_096_000)]:
        monkeypatch.setattr(Path, "read_text", lambda *_, limit=limit, **__: limit)
        assert whole_memory() == memory
