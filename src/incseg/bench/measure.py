"""How benchmarks measure: median time after a warm-up, peak memory beyond the inputs, and a matrix product's rate.

Timing is done by libraries: ``torch.utils.benchmark`` on the host, ``triton.testing.do_bench`` on a GPU. Taking turns
and measuring memory are ours: no library offers them (see docs/decisions/0007-own-or-library.md).
"""

import ctypes
import os
import platform
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.benchmark import Timer

from incseg.config import RunConfig
from incseg.engine.machine import is_out_of_memory
from incseg.errors import InputError

Step = Callable[[], None]


def device_to_measure(name: str) -> torch.device:
    """A device by its name, ``auto`` for a GPU if there is one; without the libraries that a network needs."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda needs a GPU, and PyTorch finds none here: use cpu.")
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")


class Hardware(NamedTuple):
    """The machine behind a result."""

    name: str
    software: str
    memory: int  # total, in bytes

    @property
    def slug(self) -> str:
        """The name as part of a file name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def hardware(device: torch.device) -> Hardware:
    """The device's name and memory, and the versions of the software that runs on it."""
    software = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
    if device.type != "cuda":
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Hardware(f"{_processor()}, {torch.get_num_threads()} threads", software, pages)
    import triton  # noqa: PLC0415  (missing on machines without a GPU)

    properties = torch.cuda.get_device_properties(device)
    return Hardware(properties.name, f"{software}, Triton {triton.__version__}", properties.total_memory)


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def median_milliseconds(step: Step, device: torch.device, *, seconds: float = 0.5) -> float:
    """Median time of a step after a warm-up, over about ``seconds`` and at least three repetitions.

    On a GPU it is time on the device, with the L2 cache emptied before each repetition.
    """
    timer = _timer(step)
    duration = max(seconds, 3 * timer.timeit(1).median)
    if device.type == "cuda":
        from triton.testing import do_bench  # noqa: PLC0415  (Triton is missing on machines without a GPU)

        return float(do_bench(step, rep=round(1e3 * duration), return_mode="median"))
    return 1e3 * timer.blocked_autorange(min_run_time=duration).median


def median_milliseconds_in_turns(steps: Sequence[Step], *, rounds: int, repeats: int) -> list[float]:
    """Median time of each of several steps, in wall-clock time on the host.

    In every round each step is repeated a few times in a row, as in training: the host may run ahead of the device. The
    steps take turns so that a machine that slows down slows them all, and their ratios hold.
    """
    timers = [_timer(step) for step in steps]
    times = [[timer.timeit(repeats).median for timer in timers] for _ in range(rounds)]
    return [1e3 * statistics.median(column) for column in zip(*times, strict=True)]


def _timer(step: Step) -> Timer:
    """PyTorch's timer: it warms up, waits for the device, and uses one thread unless told otherwise."""
    return Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())


def peak_extra_bytes(step: Step, device: torch.device) -> int | None:
    """Peak memory during a step beyond what was in use before it; None where the system does not report it."""
    step()
    wait_for(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory freed by earlier steps must not hide what this one takes
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: resets the peak
        before = _resident("VmRSS")
        step()
        return max(0, _resident("VmHWM") - before)
    except (OSError, AttributeError):
        return None


def _resident(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(re.findall(rf"{field}:\s+(\d+) kB", text)[0])


def matmul_rate(device: torch.device) -> float:
    """TFLOP/s of a large square product: float16 on a GPU, float32 on a CPU."""
    size, dtype = (8192, torch.float16) if device.type == "cuda" else (2048, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def step() -> None:
        a @ b

    return 2 * size**3 / median_milliseconds(step, device) / 1e9


def wait_for(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def within_memory(config: RunConfig) -> Iterator[None]:
    """Say in a sentence that the sizes are too large for the device."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"{config.optim.batch_size} crops of {config.data.crop_size} pixels with '{config.model.encoder}' and "
            f"'{config.method}' need more memory than there is: lower --optim.batch-size or --data.crop-size."
        ) from error
