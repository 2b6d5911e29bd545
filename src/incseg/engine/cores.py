"""The cores of this machine; known without PyTorch, which takes seconds to import."""

import os


def usable_cores() -> int:
    """The cores that this process may use, where the system says so; else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_of_cores(jobs: int) -> dict[str, str]:
    """What the environment of each of several processes says of the threads it may use, unless the person says it."""
    if jobs == 1:
        return {}
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // jobs)))}
