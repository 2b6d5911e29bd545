"""Numbers that are not finite: the update is skipped, and a run in which that does not stop is stopped."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from incseg.errors import TrainingError

GRADIENT = "the gradient"


@dataclass
class UpdateGuard:
    """Watches the updates of a step.

    It reads one number per iteration from the device: a gradient must be known to be finite before anything is made of
    it. Statistics of batch normalisation, which the forward pass has already moved, are put back.
    """

    student: nn.Module
    limit: int
    """Updates in a row that may be skipped."""
    total: Callable[[Tensor], Tensor] = lambda flag: flag
    """Sums over all processes, so that all skip or none."""
    in_a_row: int = 0
    _now: list[Tensor] = field(init=False)
    _kept: list[Tensor] = field(init=False)
    _parameters: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self._now = [buffer for buffer in self.student.buffers() if buffer.is_floating_point()]
        self._kept = [buffer.clone() for buffer in self._now]
        self._parameters = [parameter for parameter in self.student.parameters() if parameter.requires_grad]

    def begin(self) -> None:
        """Before the forward pass."""
        _copy(self._now, self._kept)

    @torch.no_grad()
    def accepts(self, terms: Mapping[str, Tensor]) -> bool:
        """Whether loss terms and gradients are finite, in all processes."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        largest = torch.nn.utils.get_total_norm(gradients, norm_type=math.inf)  # NaN if one is
        seen = torch.stack([value.detach().float().to(largest.device) for value in terms.values()] + [largest.float()])
        return not self.total((~seen.isfinite()).any().float()).item()

    def accepted(self) -> None:
        """After an update."""
        self.in_a_row = 0

    def skip(self) -> None:
        """Instead of an update."""
        _copy(self._kept, self._now)
        self.in_a_row += 1

    def exhausted(self, iterations: int) -> bool:
        """Whether to give up: too many in a row, or all of a step."""
        return self.in_a_row > self.limit or self.in_a_row == iterations


def _copy(source: list[Tensor], target: list[Tensor]) -> None:
    with torch.no_grad():
        if source:
            torch._foreach_copy_(target, source)


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
