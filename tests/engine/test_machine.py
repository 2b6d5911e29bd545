import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from incseg.config import RunConfig
from incseg.engine.assembly import train
from incseg.engine.machine import keep_freed_memory
from incseg.engine.trainer import Trainer
from incseg.errors import TrainingError

TENSORS, PAGES = 20, 4096  # each tensor has 16 MB, which are that many pages of 4 kB


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_freed_memory_is_kept_for_the_next_iteration() -> None:
    """Pages that the system maps anew are counted; without, every tensor takes all of its own anew."""
    import resource

    def mapped_by_tensors() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        together = [torch.ones(PAGES * 1024) for _ in range(TENSORS)]
        del together
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    mapped_by_tensors()
    assert mapped_by_tensors() < TENSORS * PAGES / 4


def test_a_loading_process_killed_during_an_iteration_is_told_in_a_sentence(
    quick_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Trainer) -> None:
        raise RuntimeError("DataLoader worker (pid 12345) is killed by signal: Killed. ")

    monkeypatch.setattr(Trainer, "run", run)
    with pytest.raises(TrainingError, match=r"was killed.*--data\.workers"):
        train(quick_config("ft"), tmp_path)
