"""Activations of an encoder: leaky ones in place of ReLU, and what a stage was before its last one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from incseg.errors import InputError

SLOPE = 0.01  # of the leaky ReLU in the code of MiB, PLOP and UCD


def make_leaky(encoder: nn.Module) -> None:
    """Put a leaky ReLU in the place of every ReLU."""
    relus = [name for name, module in encoder.named_modules(remove_duplicate=False) if type(module) is nn.ReLU]
    if not relus:
        raise InputError("model.activation leaky needs an encoder with ReLUs, such as a ResNet; this one has none.")
    for name in relus:
        encoder.set_submodule(name, nn.LeakyReLU(SLOPE, inplace=True))


def last_activations(encoder: nn.Module, images: Tensor) -> list[str | None]:
    """For every stage of an encoder the name of the module whose output it is, or None if that is no activation.

    Found by running the encoder once and comparing what activations return with the stages. The activations found no
    longer overwrite their input, which is thus there for :func:`recorded_inputs`.
    """
    activations = {name: module for name, module in encoder.named_modules() if _is_activation(module)}
    overwriting = [module for module in activations.values() if getattr(module, "inplace", False)]
    for module in overwriting:
        module.inplace = False
    results, stages = _run(encoder, images, activations)
    ends = [next((name for name, result in results.items() if result is stage), None) for stage in stages]
    found = [activations[name] for name in ends if name is not None]
    for module in overwriting:
        module.inplace = not any(module is end for end in found)
    return ends


def _run(
    encoder: nn.Module, images: Tensor, activations: Mapping[str, nn.Module]
) -> tuple[dict[str, Tensor], Sequence[Tensor]]:
    """What the activations return, by name, and the stages; no statistics of batch normalisation move."""
    results: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda *module_inputs_result: results.update({name: module_inputs_result[-1]})

    handles = [module.register_forward_hook(keep(name)) for name, module in activations.items()]
    modes = {module: module.training for module in encoder.modules()}
    with torch.no_grad():
        stages = encoder.eval()(images)[1:]
    for module, mode in modes.items():
        module.training = mode
    for handle in handles:
        handle.remove()
    return results, stages


@contextmanager
def recorded_inputs(encoder: nn.Module, names: Sequence[str | None]) -> Iterator[dict[str, Tensor]]:
    """While it is open, the last input of the named modules by name."""
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda *module_inputs: inputs.update({name: module_inputs[-1][0]})

    found = [name for name in names if name is not None]
    handles = [encoder.get_submodule(name).register_forward_pre_hook(keep(name)) for name in found]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def _is_activation(module: nn.Module) -> bool:
    """PyTorch and timm keep theirs in modules of that name, which hold nothing else without parameters."""
    return "activation" in type(module).__module__ and not list(module.parameters())
