"""Whether Triton's kernels can run here; found out without importing it."""

import os
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def runs_triton(tensor: Tensor) -> bool:
    """Whether kernels can read this tensor: on an NVIDIA device, or anywhere if Triton interprets them."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return has_triton() and torch.version.hip is None and (tensor.is_cuda or interpreted)


def builds(kernels: Callable[[], object], consequence: str) -> bool:
    """Whether Triton can build the kernels that a call needs; it wants a C compiler, among other things.

    If not, that is said with what follows from it; whoever asks remembers the answer.
    """
    try:
        kernels()
    except Exception as error:  # whatever keeps a compiler from working
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"{consequence}, since Triton fails here ({reason})", stacklevel=3)
        return False
    return True
