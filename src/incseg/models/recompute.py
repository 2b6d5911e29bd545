"""Activation checkpointing: blocks of an encoder keep their input only, and are run again for the backward pass."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputed(encoder: nn.Module) -> Iterator[None]:
    """Within it, the encoder keeps of its blocks what they are given, and nothing in between.

    Blocks are those members of its sequences that have members themselves. Nothing remains on the modules: a copy of
    them is an ordinary network.
    """
    blocks = list(_blocks(encoder))
    for block in blocks:
        block.forward = _run_twice(block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost sequences that have several."""
    for child in module.children():
        if isinstance(child, nn.Sequential) and len(child) > 1:
            yield from (block for block in child.children() if next(block.children(), None) is not None)
        else:
            yield from _blocks(child)


def _run_twice(block: nn.Module) -> Callable[..., Any]:
    forward = block.forward

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_still(block)

    def run(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts)

    return run


@contextmanager
def _statistics_still(block: nn.Module) -> Iterator[None]:
    """The second run sees the same batch: batch normalisation must not count it twice.

    It ends with an exception, as soon as it has all that the backward pass needs; not every norm may have been reached.
    """
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm) and module.training]
    momenta = [norm.momentum for norm in norms]
    counts = [(count, count.clone()) for norm in norms if (count := norm.num_batches_tracked) is not None]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for count, before in counts:
            count.copy_(before)
