"""Tests of Triton's kernels: on a GPU where there is one, else in a process of its own in which Triton interprets."""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def _patch_the_language_once_per_launch() -> None:
    """Spare a third of the interpreter's time.

    It looks through all of ``triton.language`` for what to replace at every call of a function of a kernel, and finds
    nothing that the first call of the launch has not replaced already.
    """
    from triton.runtime import interpreter

    language = interpreter.tl
    patch: Callable[[Any], Any] = interpreter._patch_lang
    done: set[bool] = set()

    def patch_once(function: Any) -> Any:
        seen = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        whole = language in seen  # or language.core alone, in functions of Triton's own
        if whole in done:
            return interpreter._LangPatchScope()
        done.add(whole)
        scope = patch(function)
        restore = scope.restore

        def end_of_launch() -> None:
            done.clear()
            restore()

        scope.restore = end_of_launch
        return scope

    interpreter._patch_lang = patch_once


if INTERPRETED:
    _patch_the_language_once_per_launch()
