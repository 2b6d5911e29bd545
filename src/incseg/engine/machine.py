"""What the machine must give a run: room on its disk, and processes that stay together."""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning.fabric import Fabric

from incseg.config import EngineConfig, RunConfig
from incseg.engine.cores import FIRST_STEP_THREADS
from incseg.errors import LocalError, TrainingError
from incseg.methods import parse
from incseg.models import Segmenter
from incseg.run_folder import RunFolder

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in malloc.h
LARGEST_THRESHOLD = 2**25  # bytes; glibc takes no larger one for what is mapped on its own
CHECKPOINTS = 3  # the last two, and the one being written
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "status_alloc_failed")
LOST = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "timed out", "socket")


def require_space(folder: RunFolder, student: Segmenter, steps: int) -> None:
    """Refuse to begin where the models of the steps to come and their checkpoints have no room.

    At least that much is needed; what some methods remember, and pictures, come on top.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in student.state_dict().values())
    to_come = steps - len(folder.finished_steps)
    needed = size * (to_come + 2 * CHECKPOINTS) if to_come else 0  # a checkpoint holds weights and momentum
    free = shutil.disk_usage(folder.path).free
    if free < needed:
        raise TrainingError(
            f"{folder.path} has no room: {readable(free)} are free, and {to_come} models of {readable(size)} with "
            f"their checkpoints need at least {readable(needed)}; free some space there, or choose another --out."
        )


def keep_freed_memory() -> None:
    """Let glibc keep what is freed instead of giving it back to the system, and asking for it again in every iteration.

    That took a fifth of the time of training a small network on a CPU. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def threads_of_step(step: int) -> Iterator[None]:
    """Inside, PyTorch computes with as many threads as a study gives to this step of its run."""
    usual, first = torch.get_num_threads(), os.environ.get(FIRST_STEP_THREADS, "")
    torch.set_num_threads(int(first) if step == 0 and first.isdecimal() else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def whole_memory() -> int | None:
    """Bytes of RAM that this process may use at most; None where the system does not say."""
    if not hasattr(os, "sysconf"):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(physical, int(text)) if text.isdecimal() else physical


def readable(size: float) -> str:
    """Bytes, as a person counts them."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


@contextmanager
def enough_memory(config: RunConfig) -> Iterator[None]:
    """Say in a sentence that the memory does not suffice for training, and what needs less."""
    batch, crop = config.optim.batch_size, config.data.crop_size
    ways = [*savings(config), "choose a smaller --data.crop-size, --optim.batch-size or encoder; checkpoints are kept"]
    with _told(f"with batches of {batch} crops of {crop} pixels", ways):
        yield


@contextmanager
def enough_memory_to_score(config: RunConfig) -> Iterator[None]:
    """Say in a sentence that the memory does not suffice for scoring, and what needs less."""
    wanted = config.engine.score_batch_size
    fewer = [f"score fewer at a time with --engine.score-batch-size {wanted // 2}"] if wanted > 1 else []
    ways = [*fewer, "close what else uses it; then run the same command again"]
    with _told("while images are scored", ways):
        yield


@contextmanager
def _told(when: str, ways: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0][:160]
        advice = ", or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))
        raise LocalError(f"the memory is full {when}: {advice} ({reason}).") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU's or the machine's memory is full; allocators and libraries each say it in their own way."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in NO_MEMORY)


def savings(config: RunConfig) -> Iterator[str]:
    """What needs less memory and gives the same result or nearly so, of what this run can still do."""
    engine, pieces = config.engine, 2 * config.engine.accumulate
    share = config.optim.batch_size // (engine.devices * engine.nodes)
    whole = any(part.joins_images for part in parse(config.method, config.settings).parts)
    if not whole and share % pieces == 0 and share >= 2 * pieces:
        yield f"cut batches into pieces with --engine.accumulate {pieces}"
    if not engine.recompute:
        yield "keep fewer activations of encoders with blocks with --engine.recompute true"
    on_gpu = torch.cuda.is_available() and engine.accelerator in ("auto", "cuda")
    if config.data.cache in (("auto", "gpu") if on_gpu else ("ram",)):
        yield "keep no images in it with --data.cache none"


def anywhere(here: bool, fabric: Fabric) -> bool:
    """Whether something is so in any process of a run; they wait for each other and agree."""
    if fabric.world_size == 1:
        return here
    total = torch.tensor(float(here), device=fabric.device)
    torch.distributed.all_reduce(total)
    return bool(total.item())


@contextmanager
def together(engine: EngineConfig) -> Iterator[None]:
    """Say in a sentence that another process of the run is gone or never came, instead of a traceback."""
    several = engine.devices * engine.nodes > 1
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        lost = isinstance(error, torch.distributed.DistError) or any(sign in str(error).lower() for sign in LOST)
        if not several or not lost:
            raise
        raise TrainingError(
            f"another of the {engine.devices * engine.nodes} processes of this run has ended, or did not come within "
            f"{engine.timeout:g} s (--engine.timeout): see what it said, and start all of them again ({reason[:160]})."
        ) from error
    finally:
        if torch.distributed.is_initialized():  # at the interpreter's exit its threads may be killed midway
            torch.distributed.destroy_process_group()
