"""Whether Triton's kernels can run here; found out without importing it."""

import os
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
