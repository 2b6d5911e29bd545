"""What is optimised in a step, and how: SGD over the parameters that the step can change."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # what plain, timm's and synchronised normalisation have in common

from incseg.config import OptimConfig
from incseg.models import Segmenter


def build_optimizer(student: nn.Module, optim: OptimConfig, *, fused: bool = False) -> torch.optim.SGD:
    """SGD with Nesterov momentum over what is not frozen; the trainer sets its learning rate before every iteration."""
    return torch.optim.SGD(
        [parameter for parameter in student.parameters() if parameter.requires_grad],
        lr=optim.learning_rate,
        momentum=optim.momentum,
        weight_decay=optim.weight_decay,
        nesterov=optim.momentum > 0,
        fused=fused or None,
    )


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
