"""What the tests of all backends of contrastive distillation share."""

from typing import Any

import torch
from torch import Tensor

from incseg.losses import contrastive_distillation

Case = dict[str, Any]


def run(inputs: Case, *, upstream: float = -2.5, **settings: Any) -> tuple[Tensor, Tensor]:
    """Loss, and gradient of upstream · loss by the anchors."""
    anchors = inputs["anchors"].detach().clone().requires_grad_()
    loss = contrastive_distillation(**{**inputs, "anchors": anchors}, **settings)
    (gradient,) = torch.autograd.grad(loss * upstream, anchors)
    return loss.detach(), gradient


def in_float64(inputs: Case) -> Case:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


def relative_error(got: Tensor, true: Tensor) -> float:
    return float((got.double() - true).norm() / true.norm().clamp_min(1e-6))
