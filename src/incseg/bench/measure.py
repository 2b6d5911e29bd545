"""How things are measured: medians after a warm-up, peak memory beyond the inputs, a plain product as the ceiling."""

import ctypes
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

Step = Callable[[], None]


class Hardware(NamedTuple):
    """What a result must name."""

    name: str
    software: str
    memory: int  # bytes in all

    @property
    def slug(self) -> str:
        """The name as part of a file name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def hardware(device: torch.device) -> Hardware:
    """The device's name, memory and the versions that matter to it."""
    software = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
    if device.type != "cuda":
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Hardware(f"{_processor()}, {torch.get_num_threads()} threads", software, pages)
    import triton  # noqa: PLC0415  (not there on machines without a GPU)

    properties = torch.cuda.get_device_properties(device)
    return Hardware(properties.name, f"{software}, Triton {triton.__version__}", properties.total_memory)


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def median_milliseconds(step: Step, device: torch.device, *, seconds: float = 0.5) -> float:
    """Median over repeated steps for about ``seconds``, at least three and at most a hundred, after a warm-up."""
    for _ in range(2):
        step()
    _wait(device)
    began = time.perf_counter()
    step()
    _wait(device)
    repeats = min(max(3, int(seconds / (time.perf_counter() - began))), 100)
    times = _device_times(step, repeats) if device.type == "cuda" else [_host_time(step) for _ in range(repeats)]
    return statistics.median(times)


def _device_times(step: Step, repeats: int) -> list[float]:
    """Time on the device between events; the host runs ahead as in training, the cache is emptied before each step."""
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in pairs:
        flush.zero_()
        start.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [float(start.elapsed_time(end)) for start, end in pairs]


def _host_time(step: Step) -> float:
    began = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - began)


def peak_extra_bytes(step: Step, device: torch.device) -> int | None:
    """Most memory in use during a step beyond that in use before it; None where the system does not tell."""
    step()
    _wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier steps freed must not hide what this one takes
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: the peak restarts from now
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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
