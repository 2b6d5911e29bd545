"""Numbers that are not finite: the update is skipped, and a run in which that does not stop is stopped."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from lightning.fabric.wrappers import _FabricModule, _FabricOptimizer
from torch import Tensor, nn

from incseg.errors import TrainingError

GRADIENT = "the gradient"


class Verdict(NamedTuple):
    """On one update: its loss terms, and whether something was not finite; both may still be on the device."""

    iteration: int
    terms: Mapping[str, Tensor]
    wrong: Tensor


@dataclass
class UpdateGuard:
    """Makes the updates of a step, except those that would spoil the network.

    An optimizer whose kernel is told on the device to do nothing is not waited for: what was skipped is then known
    when somebody reads it. Statistics of batch normalisation, which the forward pass has already moved, are put back.
    """

    student: nn.Module
    model: _FabricModule
    """The student as an iteration calls it."""
    optimizer: _FabricOptimizer
    limit: int
    """Updates in a row that may be skipped."""
    total: Callable[[Tensor], Tensor] = lambda flag: flag
    """Sums over all processes, so that all skip or none."""
    in_a_row: int = 0
    """Skipped updates up to the last one that was read."""
    _now: list[Tensor] = field(init=False)
    _kept: Tensor = field(init=False)
    _parameters: list[Tensor] = field(init=False)
    _unread: list[Verdict] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._now = [buffer for buffer in self.student.buffers() if buffer.is_floating_point()]
        self.keep_statistics()
        self._parameters = [parameter for parameter in self.student.parameters() if parameter.requires_grad]

    @property
    def waits(self) -> bool:
        """Whether every update waits for its verdict, which then costs nothing to read."""
        return not self.optimizer.optimizer.defaults.get("fused")

    def own_gradients(self) -> None:
        """Give the parameters gradients of their own: those that a graph made, its next replay writes over."""
        for parameter in self._parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()

    def keep_statistics(self) -> None:
        """Those of batch normalisation as they are now are what a skipped update goes back to."""
        self._kept = self._joined()

    @torch.no_grad()
    def judge(self, terms: Mapping[str, Tensor]) -> Tensor:
        """() float32, 1 if a loss term or a gradient is not finite in some process, else 0."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        largest = torch.nn.utils.get_total_norm(gradients, norm_type=math.inf)  # NaN if one is
        seen = torch.stack([value.detach().float().to(largest.device) for value in terms.values()] + [largest.float()])
        return self.total((~seen.isfinite()).any().float()).clamp(max=1)

    @torch.no_grad()
    def update(self, verdict: Verdict) -> None:
        """Change the parameters unless something is wrong."""
        self._unread.append(verdict)
        if self.waits and not verdict.wrong.item():
            self.optimizer.step()
            self.keep_statistics()
            return
        if not self.waits:
            self.optimizer.optimizer.found_inf = verdict.wrong  # type: ignore[attr-defined]  # read by PyTorch's fused kernels
            self.optimizer.step()
        self._kept = torch.where(verdict.wrong > 0, self._kept, self._joined())
        if self._now:
            pieces = self._kept.split([buffer.numel() for buffer in self._now])
            torch._foreach_copy_(self._now, [p.view_as(b) for p, b in zip(pieces, self._now, strict=True)])

    def read(self) -> Iterator[Verdict]:
        """The updates skipped since the last reading, each with ``in_a_row`` as it was then."""
        unread, self._unread = self._unread, []
        wrong = torch.stack([verdict.wrong for verdict in unread]).tolist() if unread else []
        for verdict, is_wrong in zip(unread, wrong, strict=True):
            self.in_a_row = self.in_a_row + 1 if is_wrong else 0
            if is_wrong:
                yield verdict

    def exhausted(self, iterations: int) -> bool:
        """Whether to give up: too many in a row, or all of a step."""
        return self.in_a_row > self.limit or self.in_a_row == iterations

    def _joined(self) -> Tensor:
        return torch.cat([buffer.flatten() for buffer in self._now]) if self._now else torch.zeros(0)


def culprits(values: Mapping[str, float]) -> str:
    """The terms that are not finite, or the gradient where all of them are."""
    wrong = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    return ", ".join(wrong) or f"{GRADIENT} is not finite"


def skipped(where: str, values: Mapping[str, float], images: Sequence[str]) -> str:
    """What is said of a skipped update."""
    return f"{where}: {culprits(values)}; the update is skipped. Its images: {', '.join(images)}"


def given_up(where: str, values: Mapping[str, float], updates: int, setting: str) -> TrainingError:
    """What is said when a run stops: which term, and what usually helps."""
    sizes = {name: math.inf if math.isnan(value) else abs(value) for name, value in values.items()}
    added = [name for name in sizes if name != "segmentation"]
    weight = f", or a smaller weight of {max(added, key=sizes.__getitem__)}," if added else ""
    return TrainingError(
        f"the loss is no longer finite at {where} ({culprits(values)}), and {updates} updates in a row were skipped; a "
        f"lower --optim.{setting}{weight} usually helps (with another --out). The last good checkpoint is kept."
    )
