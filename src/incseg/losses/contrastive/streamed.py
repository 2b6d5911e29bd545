"""Contrastive distillation without the dense matrix, in one process or across several: one autograd function."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from incseg.losses.contrastive.backend import ContrastSets, ContrastSettings, State, StreamedBackend


class Plan(NamedTuple):
    """How the loss is computed: by which backend, and with which other processes."""

    backend: StreamedBackend
    settings: ContrastSettings
    group: dist.ProcessGroup | None
    world: int

    @property
    def rank(self) -> int:
        """This process' place among the plan's processes."""
        return dist.get_rank(self.group) if self.world > 1 else 0


def streamed_loss(plan: Plan, sets: ContrastSets) -> Tensor:
    """This process' share of the loss over the anchors of all processes, times the number of processes.

    The mean over processes of what is returned is the loss of the joined batch; so is the mean of the gradients, which
    is what distributed data parallelism computes.
    """
    loss: Tensor = _Streamed.apply(sets.anchors, plan, *sets[1:])
    return loss


class _Streamed(torch.autograd.Function):
    """Forward keeps per-anchor statistics only; backward recomputes the similarities."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, plan: Plan, *rest: Tensor | None) -> Tensor:
        own = ContrastSets(anchors, *rest)  # type: ignore[arg-type]  # autograd hands them over unnamed
        sets, anchor_count = _gather_sets(own, plan) if plan.world > 1 else (own, None)
        share, state = plan.backend.forward(sets, plan.settings, anchor_count)
        ctx.plan = plan
        ctx.save_for_backward(*sets, *state)
        loss: Tensor = share * plan.world if plan.world > 1 else share
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        # As in forward, what autograd keeps comes back unnamed.
        parts = len(ContrastSets._fields)
        saved = ctx.saved_tensors
        sets, state = ContrastSets(*saved[:parts]), saved[parts:]
        contrast_stats = None
        if plan.world > 1:
            upstream = upstream * plan.world
            if not plan.settings.detach_contrast:
                contrast_stats = _gather_stats(plan, sets, state, upstream)
        gradient = plan.backend.backward(sets, plan.settings, state, upstream, contrast_stats)
        return (gradient, *(None for _ in range(6)))


def _gather_sets(own: ContrastSets, plan: Plan) -> tuple[ContrastSets, Tensor]:
    """This process' anchors against everybody's rows, and |R| over all processes.

    The contrast rows are the other processes' anchors, in the order of ranks, then all teachers' rows.
    """
    labels = _all_gather(own.anchor_labels, plan)
    count = torch.stack([(part >= 0).sum() for part in labels]).sum()

    def join(anchors: list[Tensor], contrast: Tensor) -> Tensor:
        return torch.cat(_others(anchors, plan) + _all_gather(contrast, plan))

    probs = None
    if own.anchor_probs is not None and own.contrast_probs is not None:
        probs = join(_all_gather(own.anchor_probs, plan), own.contrast_probs)
    contrast = join(_all_gather(own.anchors, plan), own.contrast)
    contrast_labels = join(labels, own.contrast_labels)
    return own._replace(contrast=contrast, contrast_labels=contrast_labels, contrast_probs=probs), count


def _gather_stats(plan: Plan, sets: ContrastSets, state: State, upstream: Tensor) -> Tensor:
    """(3, rows of other processes' anchors): L, and A and B times the upstream gradient of their process.

    They suffice to compute the whole gradient of this process' rows, also as contrast of others: no gradient is sent.
    """
    log, pull, push = plan.backend.statistics(sets, state)
    parts = _all_gather(torch.stack([log, pull * upstream, push * upstream]), plan)
    return torch.cat(_others(parts, plan), dim=1)


def _others(parts: list[Tensor], plan: Plan) -> list[Tensor]:
    return [part for rank, part in enumerate(parts) if rank != plan.rank]


def _all_gather(own: Tensor, plan: Plan) -> list[Tensor]:
    own = own.detach().contiguous()
    parts = [torch.empty_like(own) for _ in range(plan.world)]
    dist.all_gather(parts, own, group=plan.group)
    return parts
