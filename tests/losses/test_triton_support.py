"""Launches, with stand-ins for Triton's kernels: none of this needs a GPU, or Triton."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from incseg.losses import triton_support
from incseg.losses.triton_support import Launch, builds

Call = Callable[..., Any]


class Compiled:
    """A compiled kernel that takes all parameters by position."""

    def __init__(self, parameters: int, launched: list[Any]) -> None:
        self.src = SimpleNamespace(signature=dict.fromkeys(range(parameters)))
        self._launched = launched
        self.function, self.packed_metadata = "function", "metadata"

    def __getitem__(self, grid: tuple[int, ...]) -> Call:
        return lambda *arguments: self._launched.append(("hooked", grid, arguments, {}))

    def run(self, x: int, y: int, z: int, *rest: Any) -> None:
        assert rest[:6] == ("stream of 7", self.function, self.packed_metadata, None, None, None)
        self._launched.append(("direct", (x, y, z), rest[6:], {}))


class Kernel:
    """A kernel that takes two buffers, a number and a constant, and notes how it is launched."""

    arg_names = ("rows", "out", "size", "BLOCK")

    def __init__(self, compiled_parameters: int | None = 4) -> None:
        self.launched: list[Any] = []
        self._compiled = None if compiled_parameters is None else Compiled(compiled_parameters, self.launched)

    def __getitem__(self, grid: tuple[int, ...]) -> Call:
        def launch(*arguments: Any, **constants: Any) -> Compiled | None:
            self.launched.append(("ordinary", grid, arguments, constants))
            return self._compiled

        return launch

    def ways(self) -> list[str]:
        """Ordinary, direct or hooked, in order."""
        return [way for way, *_ in self.launched]


class Hooks:
    """Launch hooks as Triton keeps them, in chains."""

    def __init__(self, *hooks: Call) -> None:
        self.calls = list(hooks)


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Triton's settings of launches, without a hook."""
    settings = SimpleNamespace(launch_enter_hook=Hooks(), launch_exit_hook=Hooks())
    active = SimpleNamespace(get_current_device=lambda: 7, get_current_stream=lambda device: f"stream of {device}")
    monkeypatch.setattr(triton_support, "_triton_runtime", lambda: (settings, SimpleNamespace(active=active)))
    return settings


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def aligned(size: int = 8, dtype: torch.dtype = torch.float32) -> Tensor:
    buffer = torch.zeros(size, dtype=dtype)
    assert buffer.data_ptr() % 16 == 0
    return buffer


def launch(kernel: Kernel, rows: Tensor | None, number: float = 32, *, block: int = 64, warps: int = 4) -> None:
    Launch(kernel, (3,), number, BLOCK=block, num_warps=warps)(rows, aligned())


def test_the_second_launch_is_direct_and_passes_the_same_arguments(kernel: Kernel) -> None:
    rows, out = aligned(), aligned()
    ready = Launch(kernel, (3, 2), 32, num_warps=4, BLOCK=64)
    ready(rows, out)
    ready(rows, out)
    first, second = kernel.launched
    assert first == ("ordinary", (3, 2, 1), (rows, out, 32), {"BLOCK": 64, "num_warps": 4})
    assert second == ("direct", (3, 2, 1), (rows.data_ptr(), out.data_ptr(), 32, 64), {})


def test_numbers_of_one_kind_share_a_compiled_kernel(kernel: Kernel) -> None:
    for number in (32, 48, 17, 19, 1, 0.5, 0.25):
        launch(kernel, aligned(), number)
    assert kernel.ways() == ["ordinary", "direct", "ordinary", "direct", "ordinary", "ordinary", "direct"]
    assert kernel.launched[1][2][2:] == (48, 64)  # and each launch has its own number


@pytest.mark.parametrize(
    "other",
    [
        {"rows": torch.zeros(8, dtype=torch.float16)},
        {"rows": torch.zeros(9)[1:]},
        {"rows": None},
        {"number": 33},
        {"number": 1},
        {"number": 2**31},
        {"number": 2**63},
        {"number": 32.0},
        {"block": 128},
        {"warps": 8},
    ],
    ids=["dtype", "alignment", "no buffer", "not 16k", "one", "64 bits", "unsigned", "float", "constant", "warps"],
)
def test_what_triton_compiles_for_is_launched_by_triton(kernel: Kernel, other: dict[str, Any]) -> None:
    same: dict[str, Any] = {"rows": aligned()}
    for arguments in (same, same | other, same | other, same):
        launch(kernel, **arguments)
    assert kernel.ways() == ["ordinary", "ordinary", "direct", "direct"]


def test_another_device_is_launched_by_triton(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for device in (0, 1, 0):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        launch(kernel, aligned())
    assert kernel.ways() == ["ordinary", "ordinary", "direct"]


def test_kernels_have_nothing_in_common(kernel: Kernel) -> None:
    other = Kernel()
    launch(kernel, aligned())
    launch(other, aligned())
    assert kernel.ways() == other.ways() == ["ordinary"]


@pytest.mark.parametrize("compiled_parameters", [None, 3], ids=["interpreted", "without its constants"])
def test_what_cannot_be_launched_directly_is_always_launched_by_triton(compiled_parameters: int | None) -> None:
    kernel = Kernel(compiled_parameters)
    launch(kernel, aligned())
    launch(kernel, aligned())
    assert kernel.ways() == ["ordinary", "ordinary"]


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("hook", [Hooks(print), print], ids=["in a chain", "alone"])
def test_profilers_hooks_are_called(kernel: Kernel, hooks: SimpleNamespace, name: str, hook: Any) -> None:
    launch(kernel, aligned())
    setattr(hooks, name, hook)
    launch(kernel, aligned())
    setattr(hooks, name, None)
    launch(kernel, aligned())
    assert kernel.ways() == ["ordinary", "hooked", "direct"]


def test_another_triton_launches_its_compiled_kernels_itself(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "_triton_runtime", lambda: None)
    launch(kernel, aligned())
    launch(kernel, aligned())
    assert kernel.ways() == ["ordinary", "hooked"]


def test_kernels_that_can_be_built_but_not_launched_directly_are_not_used(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_another_triton(*_: Any) -> None:
        raise TypeError("run() takes other arguments")

    monkeypatch.setattr(Compiled, "run", of_another_triton)
    with pytest.warns(UserWarning, match="slow, since Triton fails here"):
        assert not builds(lambda: launch(kernel, aligned()), "slow")
    assert kernel.ways() == ["ordinary"]
