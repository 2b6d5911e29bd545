"""Student and teacher as graphs or compiled: the same outputs, and nothing left behind."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch._functorch import config
from torch._inductor.exc import InductorError
from torch.nn.parallel import DistributedDataParallel

from incseg.batch import Outputs
from incseg.deploy.model import Model
from incseg.engine.quick_network import (
    KEPT_ACTIVATIONS,
    FlatNetwork,
    _captured_or,
    student_network,
    teacher_network,
)
from incseg.models.synchronised import synchronise

SHAPE = (2, 3, 64, 64)
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on CUDA devices")
TRACED = "aot_eager_decomp_partition"  # and cut into forward and backward, but not translated


def images() -> torch.Tensor:
    return torch.randint(0, 256, SHAPE, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def failing_teacher(
    model: Model, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> Callable[[torch.Tensor], Outputs]:
    """A teacher whose compilation ends with an error."""

    def fails(*_: object, **__: object) -> object:
        def run(_: torch.Tensor) -> None:
            raise InductorError(error, None)

        return run

    monkeypatch.setattr(torch, "compile", fails)
    fabric, wanted = Fabric(accelerator="cpu", devices=1), {"with_stages": False, "with_raw_stages": False}
    return teacher_network(model.segmenter.eval(), SHAPE, fabric, quick=True, compiled=True, **wanted)


def tensors(outputs: Outputs) -> list[torch.Tensor]:
    return [outputs.logits, outputs.embedding, *outputs.stages, *outputs.raw_stages]


def assert_same_gradients(found: nn.Module, expected: nn.Module, error: float) -> None:
    """Up to a share of each gradient's norm."""
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            assert (one.grad - other.grad).norm() <= error * other.grad.norm()


@pytest.mark.parametrize("with_stages", [False, True])
@pytest.mark.parametrize("with_raw_stages", [False, True])
def test_outputs_survive_being_a_plain_tuple(tiny_model: Model, with_stages: bool, with_raw_stages: bool) -> None:
    wanted = {"with_stages": with_stages, "with_raw_stages": with_raw_stages}
    flat = FlatNetwork(tiny_model.segmenter.eval(), **wanted)
    found, expected = flat.as_outputs(flat(images())), tiny_model.segmenter(images(), **wanted)
    assert len(found.stages) == len(expected.stages)
    assert len(found.raw_stages) == len(expected.raw_stages)
    assert found.align_corners == expected.align_corners
    assert all(torch.equal(a, b) for a, b in zip(tensors(found), tensors(expected), strict=True))


def test_a_network_that_cannot_be_compiled_runs_as_it_is_and_says_so_once(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = failing_teacher(tiny_model, RuntimeError("no compiler here"), monkeypatch)
    with pytest.warns(UserWarning, match=r"cannot be compiled here \(RuntimeError: no compiler here\)"):
        first = teacher(images())
    second = teacher(images())  # a warning would be an error here
    assert torch.equal(first.logits, tiny_model.segmenter(images()).logits)
    assert torch.equal(first.logits, second.logits)


def test_a_memory_that_is_full_while_compiling_is_no_reason_to_go_on(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = failing_teacher(tiny_model, torch.OutOfMemoryError("CUDA out of memory"), monkeypatch)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        teacher(images())


@pytest.mark.parametrize(("large", "budget"), [(2 * 64**2, KEPT_ACTIVATIONS), (2 * 64**2 + 1, 1.0)])
def test_compiled_networks_keep_fewer_activations_of_large_batches(
    large: int, budget: float, tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("incseg.engine.quick_network.LARGE_BATCH", large)
    budgets = []

    def compiler(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        budgets.append(config.activation_memory_budget)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    flags = {"with_stages": False, "with_raw_stages": False}
    student_network(
        tiny_model.segmenter, SHAPE, Fabric(accelerator="cpu", devices=1), quick=True, compiled=True, **flags
    )(images())
    assert set(budgets) == {budget}
    assert config.activation_memory_budget == 1, "for others all is as it was"


def test_compiled_networks_compute_what_the_segmenter_does(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=TRACED))
    fabric, flags = Fabric(accelerator="cpu", devices=1), {"with_stages": True, "with_raw_stages": True}
    plain = copy.deepcopy(tiny_model.segmenter).train()
    compiled = copy.deepcopy(plain)
    quick = student_network(compiled, SHAPE, fabric, quick=True, compiled=True, **flags)
    for found in (quick(images()).outputs, plain(images(), **flags)):
        torch.stack([tensor.square().mean() for tensor in tensors(found)]).sum().backward()
    assert_same_gradients(compiled, plain, error=1e-3)  # normalisation is decomposed: other rounding
    for before, after in zip(plain.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(after, before)
    teacher = teacher_network(compiled.eval(), SHAPE, fabric, quick=True, compiled=True, **flags)
    torch.testing.assert_close(teacher(images()).logits, compiled(images()).logits)


@pytest.mark.filterwarnings("error:the network runs as it is")
@pytest.mark.usefixtures("group_of_one")
def test_synchronised_networks_are_compiled_in_one_piece(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=TRACED, fullgraph=True))
    fabric, wanted = Fabric(accelerator="cpu", devices=1), {"with_stages": True, "with_raw_stages": False}
    plain = tiny_model.segmenter.train()
    compiled = copy.deepcopy(plain)
    synchronise(compiled)
    quick = student_network(compiled, SHAPE, fabric, quick=True, compiled=True, **wanted)
    for found in (quick(images()).outputs, plain(images(), **wanted)):
        torch.stack([tensor.square().mean() for tensor in tensors(found)]).sum().backward()
    assert_same_gradients(compiled, plain, error=1e-3)
    for before, after in zip(plain.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(after, before)


def test_what_no_graph_can_hold_runs_as_it_is() -> None:
    one = Fabric(accelerator="cpu")

    def fails(error: RuntimeError) -> Callable[[], str]:
        def capture() -> str:
            raise error

        return capture

    wrong = RuntimeError("operation not permitted when stream is capturing")
    with pytest.warns(UserWarning, match="cannot be captured as a graph .*capturing"):
        assert _captured_or(fails(wrong), "plain", one) == "plain"
    for error in (torch.OutOfMemoryError("full"), torch.distributed.DistBackendError("a process is gone")):
        with pytest.raises(type(error)):
            _captured_or(fails(error), "plain", one)
    assert _captured_or(lambda: "graph", "plain", one) == "graph"


@pytest.mark.parametrize("failed_elsewhere", [0, 1])
def test_all_processes_have_their_network_in_the_same_way(
    failed_elsewhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = cast(Fabric, SimpleNamespace(world_size=2, device=torch.device("cpu")))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total: total.add_(failed_elsewhere))
    with pytest.warns(UserWarning, match="in another process") if failed_elsewhere else nullcontext():
        assert _captured_or(lambda: "graph", "plain", two) == ("plain" if failed_elsewhere else "graph")


@NEEDS_CUDA
def test_captured_networks_compute_what_the_segmenter_does(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # With TF32, the default for convolutions, two algorithms of cuDNN differ by 5e-4, and a capture may find another.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    fabric = Fabric(accelerator="cuda", devices=1)
    plain, wanted = tiny_model.segmenter.to(fabric.device).train(), {"with_stages": True, "with_raw_stages": False}
    captured, given = copy.deepcopy(plain), images().to(fabric.device)
    quick = student_network(captured, SHAPE, fabric, quick=True, compiled=False, **wanted)
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), captured.buffers(), strict=True))
    for found, network in ((quick(given).outputs, quick), (plain(given, **wanted), plain)):
        sum(tensor.square().mean() for tensor in tensors(found)).backward()  # type: ignore[union-attr]
        assert network.training
    assert_same_gradients(captured, plain, error=1e-5)
    for before, after in zip(plain.buffers(), captured.buffers(), strict=True):
        torch.testing.assert_close(before, after)
    teacher = teacher_network(captured.eval(), SHAPE, fabric, quick=True, compiled=False, **wanted)
    torch.testing.assert_close(teacher(given).logits, captured(given).logits)


@NEEDS_CUDA
@pytest.mark.filterwarnings("error:the network runs as it is")
@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("compiled", [False, True])
def test_synchronised_networks_are_captured_and_their_gradients_shared(
    compiled: bool, tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    fabric, wanted = Fabric(accelerator="cuda", devices=1), {"with_stages": False, "with_raw_stages": False}
    plain, given = tiny_model.segmenter.to(fabric.device).train(), images().to(fabric.device)
    synchronise(plain)
    captured = copy.deepcopy(plain)
    quick = DistributedDataParallel(student_network(captured, SHAPE, fabric, quick=True, compiled=compiled, **wanted))
    for _ in range(3):  # messages of the graph and of its surroundings take turns
        for network in (quick, DistributedDataParallel(plain)):
            network.zero_grad()
            found = network(given)
            (found.outputs if network is quick else found).logits.square().mean().backward()
    assert_same_gradients(captured, plain, error=1e-3 if compiled else 1e-4)
    for before, after in zip(plain.buffers(), captured.buffers(), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)
