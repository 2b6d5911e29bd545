"""The cores of this machine; known without PyTorch, which takes seconds to import."""

import os

SHARE = "INCSEG_CORES"  # a variable of the environment: how many of them a run of a study may use


def usable_cores() -> int:
    """The cores that this process may use: its share of a study's, or what the system says; else all."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(SHARE, "")
    return min(allowed, max(1, int(share))) if share.isdecimal() else allowed


def share_of_cores(jobs: int) -> dict[str, str]:
    """What the environment of each of several processes says of the cores it may use.

    It loads images with so many processes at most, and computes with so many threads, unless the person says how many.
    """
    if jobs == 1:
        return {}
    share = str(max(1, usable_cores() // jobs))
    return {SHARE: share, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", share)}
