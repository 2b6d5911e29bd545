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

    Nothing remains on the modules: a copy of them is an ordinary network.
    """
    found = blocks(encoder)
    for block in found:
        block.forward = _run_twice(block)
    try:
        yield
    finally:
        for block in found:
            del block.forward


def blocks(encoder: nn.Module) -> list[nn.Module]:
    """The members of its outermost sequences that have layers of their own; none where those are layers, as in VGG."""
    return list(dict.fromkeys(block for block in _members_of_sequences(encoder) if _has_layers(block)))


def _members_of_sequences(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        members = list(child.children())
        if _is_sequence(child, members):
            yield from members
        else:
            yield from _members_of_sequences(child)


def _is_sequence(module: nn.Module, members: list[nn.Module]) -> bool:
    """A container that says so, or a stage that is one without saying: several members of one kind."""
    if isinstance(module, (nn.Sequential, nn.ModuleList)):
        return any(map(_has_layers, members))
    return len(members) > 1 and len({type(member) for member in members}) == 1 and _has_layers(members[0])


def _has_layers(module: nn.Module) -> bool:
    """Two at least that learn, as a convolution and its norm."""
    return sum(next(member.parameters(recurse=False), None) is not None for member in module.modules()) > 1


def _run_twice(block: nn.Module) -> Callable[..., Any]:
    forward = block.forward

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_still(block)

    def once(*inputs: Any, **named: Any) -> Any:
        return forward(*map(_copied_if_list, inputs), **named)

    def run(*inputs: Any, **named: Any) -> Any:
        inputs = tuple(map(_copied_if_list, inputs))
        return checkpoint(once, *inputs, use_reentrant=False, context_fn=contexts, **named)

    return run


def _copied_if_list(given: Any) -> Any:
    """Some blocks write into the list they are given, others give theirs on and add to it; both runs need the same."""
    return list(given) if isinstance(given, list) else given


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
