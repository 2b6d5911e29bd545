"""What is optimised in a step, and how: SGD over the parameters that the step can change."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # what plain, timm's and synchronised normalisation have in common

from incseg.config import OptimConfig
from incseg.errors import InputError
from incseg.models import Segmenter

FACTOR = "factor"  # of a parameter group: its share of the learning rate, which the trainer sets


def build_optimizer(student: nn.Module, optim: OptimConfig, *, step: int = 0, fused: bool = False) -> torch.optim.SGD:
    """SGD with Nesterov momentum over what is not frozen; :func:`set_learning_rate` comes before every iteration."""
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in student.named_parameters():
        if parameter.requires_grad:
            groups.setdefault(_factor(name, student, optim, step), []).append(parameter)
    if not groups:
        raise InputError(f"step {step} has nothing to train: every parameter is frozen; raise one of optim.…_rate.")
    optimizer = torch.optim.SGD(
        [{"params": parameters, FACTOR: factor} for factor, parameters in groups.items()],
        lr=optim.learning_rate,
        momentum=optim.momentum,
        weight_decay=optim.weight_decay,
        nesterov=optim.momentum > 0,
        fused=fused or None,
    )
    _begin_momentum(optimizer)
    return optimizer


def restore(optimizer: torch.optim.SGD, state: dict[str, Any]) -> None:
    """Load the state of a checkpoint, and keep computing as this run does: another may have done it another way."""
    ways = {name: optimizer.defaults[name] for name in ("fused", "foreach")}
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        group.update(ways)
    _begin_momentum(optimizer)


def _begin_momentum(optimizer: torch.optim.SGD) -> None:
    """Give a fused optimizer momenta: PyTorch's would be whatever was in memory, if the first update is skipped."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["fused"] and group["momentum"] else []:
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def set_learning_rate(groups: Sequence[dict[str, Any]], rate: float) -> None:
    """Give every group of parameters its share of the learning rate."""
    for group in groups:
        group["lr"] = rate * group.get(FACTOR, 1.0)  # absent in checkpoints of older versions


def freeze_by_rate(student: Segmenter, optim: OptimConfig, step: int) -> None:
    """Freeze what learns with a rate of 0 in this step: no gradient, no weight decay."""
    for name, parameter in student.own_parameters():
        if _factor(name, student, optim, step) == 0:
            parameter.requires_grad_(False)


def _factor(name: str, student: nn.Module, optim: OptimConfig, step: int) -> float:
    """The factor on the learning rate of a parameter; 1 for what a method trains beside the network."""
    if step == 0 or not isinstance(student, Segmenter):
        return 1.0
    newest = len(student.trained_head.heads) - 1
    factors = {
        "encoder.": optim.encoder_rate,
        "decoder.": optim.decoder_rate,
        **({f"classifier.heads.{newest}.": optim.new_heads_rate} if newest else {}),  # a domain's step adds no head
        "classifier.": optim.old_heads_rate,
    }
    return next((factor for prefix, factor in factors.items() if name.startswith(prefix)), 1.0)


def freeze_norm(student: nn.Module) -> None:
    """Keep batch normalisation as it is: statistics, scales and shifts. Lasts until ``student.train()``."""
    for module in student.modules():
        if isinstance(module, _BatchNorm):
            module.eval().requires_grad_(False)


def freeze_unused(student: Segmenter, crop_size: int, *, with_stages: bool) -> None:
    """Freeze the parameters of the network that its outputs do not depend on.

    Some encoders come with layers of their classifier that segmentation never calls (``efficientnet-b0``). They would
    get no gradient, so nothing would change them; but several processes would wait for their gradients forever.

    Args:
        student: the network; its weights, statistics and gradients stay as they are.
        crop_size: side of the training images.
        with_stages: whether the losses look at the encoder's stages too.
    """
    parameters = [parameter for _, parameter in student.own_parameters() if parameter.requires_grad]
    modes = {module: module.training for module in student.modules()}
    student.eval()  # statistics of batch normalisation must not move, and nothing may be dropped at random
    image = torch.zeros(1, 3, crop_size, crop_size, dtype=torch.uint8, device=student.mean.device)
    outputs = student(image, with_stages=with_stages)
    for module, mode in modes.items():
        module.training = mode
    total = torch.stack([output.sum() for output in (outputs.logits, *outputs.stages)]).sum()
    if not total.requires_grad:  # everything is frozen already
        return
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)
