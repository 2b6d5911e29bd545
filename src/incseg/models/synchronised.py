"""Batch normalisation over the batch of all processes, on any device, in code that can be compiled and captured.

PyTorch's own is for GPUs, and compiled it gave gradients that were 1 % off.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # tells a compiler what the messages below return
import torch.nn.functional as F
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SynchronisedNorm(_BatchNorm):
    """In training mean and variance are those of all processes, each of which has the same number of values.

    Otherwise, in use or frozen, it is what it was and sends nothing.
    """

    group: str
    """The processes, by the name of their group: what a compiler accepts in any version."""
    processes: int

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, …) → the same shape and dtype."""
        if not self.training:
            return super().forward(features)
        self._check_input_dim(features)  # type: ignore[no-untyped-call]
        mean, variance = self._statistics(features.detach())
        number = self.processes * features.numel() // self.num_features
        if self.track_running_stats:
            self._track(mean, variance * (number / (number - 1)))
        weight = torch.ones_like(mean) if self.weight is None else self.weight.to(mean.dtype)
        bias = torch.zeros_like(mean) if self.bias is None else self.bias.to(mean.dtype)
        found: Tensor = _Normalise.apply(features, weight, bias, mean, variance, self.eps, number, self.group)
        return found

    def _statistics(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(C,) mean and (C,) biased variance over all processes; float64 for float64, else float32."""
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(
            torch.cat(_own_statistics(features)), self.processes, self.group
        )
        means, variances = _arrived(gathered).view(self.processes, 2, -1).unbind(1)
        mean = means.mean(0)
        # Not the mean square less the squared mean, which cancel where the mean is large.
        return mean, variances.mean(0) + (means - mean).square().mean(0)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.add_(share * (new - running))


class SynchronisedNorm1d(SynchronisedNorm, nn.BatchNorm1d):
    """In the place of ``nn.BatchNorm1d``."""


class SynchronisedNorm2d(SynchronisedNorm, nn.BatchNorm2d):
    """In the place of ``nn.BatchNorm2d``."""


class SynchronisedNormAct2d(SynchronisedNorm, BatchNormAct2d):
    """In the place of timm's, which has an activation in it."""

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) → the same shape and dtype."""
        found: Tensor = super().forward(features)
        return self.act(self.drop(found)) if self.training else found  # else timm's own, which has both


COUNTERPARTS: dict[type[nn.Module], type[SynchronisedNorm]] = {
    nn.BatchNorm1d: SynchronisedNorm1d,
    nn.BatchNorm2d: SynchronisedNorm2d,
    BatchNormAct2d: SynchronisedNormAct2d,
}


def synchronise(network: nn.Module) -> None:
    """Let batch normalisation be that of the batch of all processes; its parameters and their names stay."""
    group = dist.group.WORLD
    assert group is not None, "the processes have not met"
    for module in network.modules():
        if type(module) in COUNTERPARTS:
            module.__class__ = COUNTERPARTS[type(module)]
        if isinstance(module, SynchronisedNorm):
            module.group, module.processes = group.group_name, group.size()
        elif isinstance(module, _BatchNorm):
            warnings.warn(
                f"{type(module).__name__} is not synchronised: each process normalises its share", stacklevel=2
            )


class _Normalise(torch.autograd.Function):
    """Features less their mean, over their deviation, times weight, plus bias; with the gradient through all of these.

    As every process has its own loss, the gradient is that of their sum, which DDP divides by their number.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float,
        number: int, group: str,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(features, weight, mean, variance)
        ctx.eps, ctx.number, ctx.group = eps, number, group
        return F.batch_norm(features, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, mean, variance = ctx.saved_tensors
        inverse = (variance + ctx.eps).rsqrt()
        # Not in training: the statistics do not follow from these features alone. A GPU reads the last two of them.
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            upstream, features, weight, mean, variance, mean, inverse, False, ctx.eps, [False, True, True]
        )
        nothing = (None,) * 5
        if not ctx.needs_input_grad[0]:
            return None, of_weight, of_bias, *nothing
        sums = torch.ops._c10d_functional.all_reduce(torch.stack([of_weight, of_bias]), "sum", ctx.group)
        shared_weight, shared_bias = (_arrived(sums) / ctx.number).unbind()
        scale = weight * inverse
        slope = -scale * inverse * shared_weight
        shift = -scale * shared_bias - slope * mean
        # scale · (upstream − shared bias − normalised · shared weight), in two passes over the features.
        scale, slope, shift = (values.view(-1, *[1] * (features.ndim - 2)) for values in (scale, slope, shift))
        of_features = torch.addcmul(torch.addcmul(shift, features, slope), upstream, scale)
        return of_features.to(features.dtype), of_weight, of_bias, *nothing


def _own_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """(C,) mean and (C,) biased variance of this process."""
    features = features if features.dtype == torch.float64 else features.float()
    if features.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.batch_norm_update_stats(features, None, None, 0.0)  # a twentieth of the time
    variance, mean = torch.var_mean(features, [0, *range(2, features.ndim)], correction=0)
    return mean, variance


def _arrived(message: Tensor) -> Tensor:
    """What the processes have sent; on a GPU it is the stream that waits, not the host."""
    arrived: Tensor = torch.ops._c10d_functional.wait_tensor(message)
    return arrived
