"""Reductions over all training processes, with which a loss becomes that of the joined batch.

In one process they return what they are given. With several, all processes must call them, in the same order.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def process_count() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if process_count() > 1 else 0


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum of a tensor over all processes, with gradient: each process receives the gradients of all.

    A loss computed from such sums has the same value everywhere, and ``DistributedDataParallel``, which averages the
    parameters' gradients, arrives at the gradient of one process on the joined batch.
    """
    if process_count() == 1:
        return values
    total: Tensor = _Sum.apply(values)
    return total


def max_over_processes(values: Tensor) -> Tensor:
    """The element-wise maximum of a tensor over all processes; its gradient goes to the process that has it."""
    if process_count() == 1:
        return values
    largest = values.detach().clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    holds = (values == largest).to(values.dtype)
    holders = holds.clone()
    dist.all_reduce(holders)
    share = sum_over_processes(values.where(holds > 0, 0) / holders)
    return share + (largest - share).detach()  # the value to the bit, which a sum of equal shares is not


def gathered_over_processes(values: Tensor) -> Tensor:
    """(N, …) of every process, the same shape in all → (processes · N, …), in their order; without gradient."""
    if process_count() == 1:
        return values
    everyone = values.new_zeros(process_count(), *values.shape)
    everyone[process_rank()] = values.detach()
    dist.all_reduce(everyone)
    return everyone.flatten(0, 1)


class _Sum(torch.autograd.Function):
    """PyTorch's own differentiable ``all_reduce`` is deprecated without a public successor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ARG004
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:  # noqa: ARG004
        total = upstream.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
