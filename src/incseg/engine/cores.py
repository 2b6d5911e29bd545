"""The cores of this machine; known without PyTorch, which takes seconds to import."""

import os

# Variables of the environment of a run of a study: how many of them it may use, and with how many it computes step 0.
SHARE, FIRST_STEP_THREADS = "INCSEG_CORES", "INCSEG_FIRST_STEP_THREADS"
THREADS = "OMP_NUM_THREADS"


def usable_cores() -> int:
    """The cores that this process may use: its share of a study's, or what the system says; else all."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(SHARE, "")
    return min(allowed, max(1, int(share))) if share.isdecimal() else allowed


def share_of_cores(jobs: int, *, waited_for: bool = False) -> dict[str, str]:
    """What the environment of each of several processes says of the cores it may use.

    It loads images with so many processes at most, and computes with so many threads, unless the person says how many.
    A run whose step 0 all others wait for computes that with the threads of all.
    """
    if jobs == 1:
        return {}
    share = str(max(1, usable_cores() // jobs))
    threads = os.environ.get(THREADS, share)
    first = {FIRST_STEP_THREADS: str(usable_cores())} if waited_for and THREADS not in os.environ else {}
    return {SHARE: share, THREADS: threads, **first}
