"""Tests of Triton's kernels: on a GPU where there is one, else in a process of its own in which Triton interprets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if ON_GPU else "cpu"

runs_kernels = pytest.mark.skipif(
    not (INTERPRETED or ON_GPU), reason="no CUDA device here: test_in_the_interpreter runs this in its own process"
)
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
only_elsewhere = pytest.mark.skipif(torch.cuda.is_available() or INTERPRETED, reason="the kernels run here")


def passes_in_the_interpreter(file: str) -> None:
    """Every test of a file that a GPU is not needed for, in a process whose Triton interprets."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "--noconftest", "-p", "no:cacheprovider", file],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:]
    assert " passed" in found.stdout
