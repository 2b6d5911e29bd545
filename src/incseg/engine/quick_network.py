"""Student and teacher made quick on a GPU: captured as CUDA graphs and, where training is long, compiled before.

A small network is limited by the host, which launches its many short kernels one by one: a captured graph is launched
as one. The GPU reads and writes every activation several times: a compiler joins the operations that do so, at the
price of a minute or two before the first iteration of the first run; later ones find its work on the disk. Only encoder
and decoder are compiled: they are the same in every step, so that what was compiled for one serves the next. Losses and
the optimizer stay as they are.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeVar, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from incseg.batch import Outputs, in_float32
from incseg.engine.captured import WARM_UP, captured
from incseg.engine.machine import anywhere, is_out_of_memory
from incseg.models import Segmenter
from incseg.models.recompute import recomputed

# Pixels that each process of a run trains on, from which on it is compiled. With a ResNet-18 and 24 crops of 256² on an
# H200 that takes a minute the first time, later runs find it on the disk, and saves 2.6 of the 8.7 ms of an iteration.
COMPILED_FROM = 10_000 * 24 * 256**2
# Of the activations that a compiler would keep for the backward pass of large batches; what is cheap is computed again
# instead. With a ResNet-101 on an H200, 24 crops of 512² then take 8.3 instead of 11.7 GiB, and 56 instead of 52 ms.
KEPT_ACTIVATIONS, LARGE_BATCH = 0.9, 24 * 384**2
Teacher = Callable[[Tensor], Outputs]
Flat = Callable[[Tensor], tuple[Tensor, ...]]
Network = TypeVar("Network")


class FlatBody(nn.Module):
    """Encoder and decoder with a plain tuple of tensors: the embedding, then stages and raw stages that are wanted."""

    def __init__(self, segmenter: Segmenter, *, with_stages: bool, with_raw_stages: bool, recompute: bool):
        super().__init__()
        self.segmenter, self.recompute = segmenter, recompute
        self.with_stages, self.with_raw_stages = with_stages, with_raw_stages

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) uint8 → features."""
        with recomputed(self.segmenter.encoder) if self.recompute else nullcontext():
            embedding, stages, raw = self.segmenter.body(images, with_raw_stages=self.with_raw_stages)
        return (embedding, *(stages if self.with_stages else ()), *raw)


class FlatNetwork(nn.Module):
    """A segmenter with a plain tuple, as graphs want it: the logits of its trained head, then what its body gives."""

    def __init__(
        self, segmenter: Segmenter, *, with_stages: bool, with_raw_stages: bool, recompute: bool = False,
        compiled: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.segmenter = segmenter
        self.wanted = {"with_stages": with_stages, "with_raw_stages": with_raw_stages}
        body = FlatBody(segmenter, **self.wanted, recompute=recompute)
        self._body = (_compiled(body) if compiled else body,)  # in a tuple: not a second copy of the network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) uint8 → all outputs that are wanted."""
        embedding, *others = self._body[0](images)
        return (self.segmenter.classifier(embedding, others), embedding, *others)

    def as_outputs(self, tensors: Sequence[Tensor]) -> Outputs:
        """The way back from :meth:`forward`."""
        logits, embedding, *others = tensors
        stages = len(others) // 2 if all(self.wanted.values()) else len(others) * self.wanted["with_stages"]
        aligned, head = self.segmenter.architecture.align_corners, self.segmenter.classifier.kind
        return Outputs(logits, embedding, others[:stages], aligned, others[stages:], head)


class Untouched:
    """Outputs as they are: of a tuple Fabric would copy every tensor to float32, which some losses do not need."""

    def __init__(self, outputs: Outputs):
        self.outputs = outputs


class QuickStudent(nn.Module):
    """The student as the trainer calls it; ``run`` may be a graph, or code that a compiler made."""

    def __init__(self, flat: FlatNetwork, run: Flat):
        super().__init__()
        self.flat = flat
        self._run = (run,)  # in a tuple, so that it is not registered as a second copy of the network

    def forward(self, images: Tensor) -> Untouched:
        """As the segmenter."""
        return Untouched(self.flat.as_outputs(self._run[0](images)))


def student_network(
    student: Segmenter, shape: Sequence[int], fabric: Fabric, *, quick: bool, compiled: bool, recompute: bool = False,
    **wanted: bool,
) -> QuickStudent:  # fmt: skip
    """The student for batches of this shape, ready for ``fabric.setup``; only what is quick may be compiled."""
    flat = FlatNetwork(student, recompute=recompute, compiled=quick and compiled, **wanted)
    if not quick or fabric.device.type != "cuda":
        return QuickStudent(flat, flat)
    # Gradients are made on the stream of the capture and added to those of the parameters on another: as is intended.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    def as_graph() -> QuickStudent:
        with _statistics_kept(student), _without_cached_casts(fabric):
            inputs = (_blank(shape, fabric),)
            graphed = torch.cuda.make_graphed_callables(flat, inputs, WARM_UP, allow_unused_input=True)
            return QuickStudent(flat, cast(Flat, graphed))

    plain = FlatNetwork(student, recompute=recompute, **wanted)
    return _captured_or(as_graph, QuickStudent(plain, plain), fabric)


def teacher_network(
    teacher: Segmenter, shape: Sequence[int], fabric: Fabric, *, quick: bool, compiled: bool, **wanted: bool
) -> Teacher:
    """The teacher for batches of this shape, with outputs as losses want them; a graph writes over the last ones."""
    flat = FlatNetwork(teacher, compiled=quick and compiled, **wanted)

    @torch.no_grad()
    def outputs_of(images: Tensor) -> Outputs:
        with fabric.autocast():
            return in_float32(flat.as_outputs(flat(images)))

    if not quick or fabric.device.type != "cuda":
        return outputs_of

    def as_graph() -> Teacher:
        with _without_cached_casts(fabric):
            return captured(outputs_of, _blank(shape, fabric))

    plain: Teacher = outputs_of
    return _captured_or(as_graph, plain, fabric)


def _captured_or(as_graph: Callable[[], Network], plain: Network, fabric: Fabric) -> Network:
    """A network as a graph; as it is, if it does what no graph can hold, such as waiting for the device.

    All processes have it in the same way, since their messages must meet.
    """
    network, reason = plain, ""
    try:
        network = as_graph()
    except RuntimeError as error:
        if is_out_of_memory(error) or isinstance(error, torch.distributed.DistError):
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if anywhere(bool(reason), fabric):
        reason = reason or "in another process"
        warnings.warn(f"the network runs as it is, since it cannot be captured as a graph ({reason})", stacklevel=3)
        return plain
    return network


def _compiled(body: FlatBody) -> Flat:
    """Compiled at its first call; where that fails, which it may in many ways, the body as it is."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415 - seconds, on machines that never compile
    from torch._functorch import config  # noqa: PLC0415
    from torch._inductor.exc import InductorError  # noqa: PLC0415

    compiled, failed = cast(Flat, torch.compile(body, dynamic=False)), False

    def run(images: Tensor) -> tuple[Tensor, ...]:
        nonlocal failed
        if failed:
            return cast(Flat, body)(images)
        large = len(images) * images.shape[-2] * images.shape[-1] >= LARGE_BATCH
        try:
            with config.patch(activation_memory_budget=KEPT_ACTIVATIONS if large else 1.0):
                return compiled(images)
        except (TorchDynamoException, InductorError) as error:
            cause = getattr(error, "inner_exception", error)
            if is_out_of_memory(cause):
                raise cause from error
            reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
            warnings.warn(f"the network runs as it is, since it cannot be compiled here ({reason})", stacklevel=2)
            failed = True
            return run(images)

    return run


def _blank(shape: Sequence[int], fabric: Fabric) -> Tensor:
    return torch.zeros(*shape, dtype=torch.uint8, device=fabric.device)


@contextmanager
def _statistics_kept(student: Segmenter) -> Iterator[None]:
    """Warming up runs the network on nothing: what batch normalisation makes of that is forgotten."""
    kept = {name: buffer.clone() for name, buffer in student.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in student.named_buffers():
            buffer.copy_(kept[name])


@contextmanager
def _without_cached_casts(fabric: Fabric) -> Iterator[None]:
    """Mixed precision keeps the short copies of weights until a forward pass ends; a graph must make its own."""
    before = torch.is_autocast_cache_enabled()
    with fabric.autocast():
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(before)
