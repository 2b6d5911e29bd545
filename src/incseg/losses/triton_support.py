"""Whether Triton's kernels can run here, found out without importing it; and how to launch them quickly."""

import os
import warnings
from collections.abc import Callable, Hashable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def runs_triton(tensor: Tensor) -> bool:
    """Whether kernels can read this tensor: on an NVIDIA device, or anywhere if Triton interprets them."""
    readable = tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return has_triton() and torch.version.hip is None and readable


def builds(kernels: Callable[[], object], consequence: str) -> bool:
    """Whether Triton can build and launch the kernels that a call needs; it wants a C compiler, among other things.

    If not, that is said with what follows from it; whoever asks remembers the answer.
    """
    try:
        kernels()
        kernels()  # launched directly now, in a way that another Triton may not know
    except Exception as error:  # whatever keeps a compiler from working
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"{consequence}, since Triton fails here ({reason})", stacklevel=3)
        return False
    return True


class Launch:
    """A kernel with its grid, numbers and compile-time constants; called with the buffers, its first parameters.

    Triton looks at every argument of every launch to find the compiled kernel that fits, which takes the host longer
    than a small kernel takes the device. Here most arguments are looked at once, when the object is made, and a
    compiled kernel that is known to fit is launched directly. Triton's settings (``triton.knobs``) thus act on
    combinations that have not been launched before; profilers' launch hooks are called always, and what they read is
    put together only if there are any.

    Args:
        kernel: a ``triton.jit`` function whose parameters are buffers, then numbers, then compile-time constants.
        grid: programs along up to three axes.
        numbers: the kernel's numbers, in order.
        constants: compile-time constants and launch options (``num_warps``), by name.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], *numbers: float, **constants: int) -> None:
        self._kernel, self._grid = kernel, (*grid, 1, 1)[:3]
        self._numbers, self._constants = numbers, constants
        # A compiled kernel is launched by position, and takes its compile-time constants too.
        names = getattr(kernel, "arg_names", ())
        self._tail = (*numbers, *(constants[name] for name in names if name in constants))
        self._compiled = _compiled_kernels(kernel, tuple(map(_kind, numbers)), tuple(sorted(constants.items())))

    def __call__(self, *buffers: Tensor | None) -> None:
        """Launch on the current device and stream."""
        addresses = [0 if x is None else x.data_ptr() for x in buffers]
        # What Triton compiles for, as far as buffers decide it: their dtypes and which start at a multiple of 16.
        kinds = [None if x is None else x.dtype for x in buffers]
        key = (_current_device(), *kinds, *[address % 16 == 0 for address in addresses])
        compiled = self._compiled.get(key)
        if compiled is not None:
            _launch(compiled, self._grid, (*addresses, *self._tail))
            return
        compiled = self._kernel[self._grid](*buffers, *self._numbers, **self._constants)
        if _takes(compiled, len(buffers) + len(self._tail)):
            self._compiled[key] = compiled


@cache
def _compiled_kernels(kernel: Any, kinds: Hashable, constants: Hashable) -> dict[Hashable, Any]:  # noqa: ARG001
    """Compiled kernels by device and kinds of buffers; one dictionary for all launches that agree in the arguments."""
    return {}


def _launch(compiled: Any, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    """``compiled[grid](*arguments)``, without what Triton prepares for launch hooks even where there are none."""
    runtime = _triton_runtime()
    if runtime is None or _has_hooks(runtime[0]) or not hasattr(compiled, "packed_metadata"):
        compiled[grid](*arguments)
        return
    _, driver = runtime
    stream = driver.active.get_current_stream(driver.active.get_current_device())
    no_hooks = (None, None, None)  # what they would read, the one before a launch, the one after it
    compiled.run(*grid, stream, compiled.function, compiled.packed_metadata, *no_hooks, *arguments)


def _has_hooks(settings: Any) -> bool:
    before, after = settings.launch_enter_hook, settings.launch_exit_hook
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))


@cache
def _triton_runtime() -> tuple[Any, Any] | None:
    """Triton's settings of launches, and its driver; None where this Triton has them elsewhere."""
    try:
        from triton import knobs  # noqa: PLC0415 - only where kernels run
        from triton.runtime import driver  # noqa: PLC0415
    except ImportError:
        return None
    return knobs.runtime, driver


def _kind(number: float) -> Hashable:
    """What Triton compiles for, as far as a number decides it: an integer's width, and whether it is 1 or 16·k."""
    if type(number) is not int:
        return type(number).__name__
    width = sum(number >= bound for bound in (-(2**31), 2**31, 2**63))
    return width, number == 1, number % 16 == 0


def _takes(compiled: Any, arguments: int) -> bool:
    """Whether this can be launched with so many arguments; an interpreted kernel, for one, leaves nothing behind."""
    signature = getattr(getattr(compiled, "src", None), "signature", ())
    return hasattr(compiled, "__getitem__") and len(signature) == arguments


def _current_device() -> int:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else -1
