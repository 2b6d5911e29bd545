"""EWC, PI and RW: parameters that mattered to earlier steps are pulled back to where they were.

All three watch gradients without penalties. What they find lives in ``memory``, by parameter name, so it survives a
crash and accumulates over the steps. Formulas and constants are those of MiB's published code, with which the paper's
rows were made.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Part, Penalty, Weight
from incseg.models import Segmenter

FIRMEST = 0.9  # of the curvature at which the optimizer still converges; the other losses add some of their own
DECAY = 0.9  # weight of the newest squared gradient in the running Fisher information


@dataclass
class ImportancePenalty(Penalty):
    """``λ Σ_i Ω_i (θ_i − θ*_i)²`` with θ* the parameters of the step before and Ω scaled to [0, 1] per tensor.

    The published λ belong to a learning rate of 0.001. At a higher one the most important parameters would oscillate
    around θ* with growing amplitude (the second derivative there is 2λΩ), so Ω is clipped to what converges.
    """

    weight: float = 500.0
    _found: dict[Segmenter, list[tuple[str, Tensor]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @abstractmethod
    def importance(self, name: str, parameter: Tensor) -> Tensor:
        """Ω of a parameter, from what was gathered up to the end of the step before; zero if it has had no gradient."""

    def begin(self, context: Context) -> None:
        """Fix θ* and Ω for the step; there is nothing to keep at step 0."""
        self._found.clear()  # it has grown
        if context.teacher is None:
            return
        largest = FIRMEST * context.stable_curvature / (2 * self.weight) if self.weight else math.inf
        for name, parameter in context.teacher.own_parameters():
            self.memory[f"before/{name}"] = parameter.detach().clone()
            self.memory[f"importance/{name}"] = self.importance(name, parameter).clamp(max=largest)

    def penalty(self, student: Segmenter) -> Tensor:
        """Over the parameters that existed before; the new head is free."""
        kept = self._kept(student)
        if not kept:
            return torch.zeros((), device=student.mean.device)
        return self.weight * torch.stack([losses.weighted_distance(*each) for each in kept]).sum()

    @torch.no_grad()
    def add_gradients(self, student: Segmenter) -> Tensor:
        """``2 λ Ω (θ−θ*)``, for all parameters at once: they are many, and mostly small."""
        kept = [each for each in self._kept(student) if each[0].requires_grad]
        if not kept:
            return self.penalty(student)
        parameters, before, importance = (list(each) for each in zip(*kept, strict=True))
        moved = torch._foreach_sub(parameters, before)
        # In the memory layout of θ, in which they are added up: that of Ω may change when it is saved and loaded.
        pull = [torch.empty_like(parameter) for parameter in parameters]
        torch._foreach_copy_(pull, importance)
        torch._foreach_mul_(pull, self.weight)  # in the order of autograd, for the same bits
        torch._foreach_mul_(pull, moved)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch._foreach_add_([parameter.grad for parameter in parameters], pull, alpha=2)
        torch._foreach_mul_(pull, moved)
        return torch.stack(torch._foreach_norm(pull, 1)).sum()  # none of them is negative

    def _kept(self, student: Segmenter) -> list[tuple[Tensor, Tensor, Tensor]]:
        """θ, θ* and Ω of every parameter that existed before."""
        return [
            (parameter, self.memory[f"before/{name}"], self.memory[f"importance/{name}"])
            for name, parameter in self.parameters(student)
            if f"before/{name}" in self.memory
        ]

    def parameters(self, student: Segmenter) -> list[tuple[str, Tensor]]:
        """Its parameters by name; to look for them in every iteration takes longer than what is done to them."""
        if student not in self._found:
            self._found = {student: list(student.own_parameters())}
        return self._found[student]

    def with_gradients(self, student: Segmenter) -> tuple[list[str], list[Tensor], list[Tensor]]:
        """Names, values and gradients of the parameters that have one."""
        found = [(name, p.detach(), p.grad.detach()) for name, p in self.parameters(student) if p.grad is not None]
        names, parameters, gradients = (list(each) for each in zip(*found, strict=True)) if found else ([], [], [])
        return names, parameters, gradients

    def remembered(self, kind: str, name: str, like: Tensor, start: float = 0.0) -> Tensor:
        """What is kept of a parameter, or its start value; a first head that grew nothing keeps its shape."""
        known = self.memory.get(f"{kind}/{name}")
        return torch.full_like(like, start) if known is None else known

    def watch_fisher(self, student: Segmenter) -> None:
        """``F ← 0.9 g² + 0.1 F``, from 1: a running estimate of the Fisher information's diagonal."""
        names, parameters, gradients = self.with_gradients(student)
        before = [self.remembered("fisher", name, p, start=1.0) for name, p in zip(names, parameters, strict=True)]
        fisher = torch._foreach_mul(gradients, gradients)
        torch._foreach_mul_(fisher, DECAY)
        torch._foreach_add_(fisher, torch._foreach_mul(before, 1 - DECAY))
        self.memory |= {f"fisher/{name}": value for name, value in zip(names, fisher, strict=True)}


@dataclass
class ElasticWeights(ImportancePenalty):
    """Ω = F."""

    def importance(self, name: str, parameter: Tensor) -> Tensor:
        """The Fisher information."""
        return losses.min_max(self.remembered("fisher", name, parameter))

    def observe(self, view: View, student: Segmenter) -> None:  # noqa: ARG002
        """Gather F."""
        self.watch_fisher(student)


@dataclass
class PathIntegral(ImportancePenalty):
    """Ω = Σ over steps of ``relu(ω / ((θ−θ_start)² + 1e-20))``, ω the loss a parameter's moves have saved."""

    def importance(self, name: str, parameter: Tensor) -> Tensor:
        """The accumulated score."""
        return losses.min_max(self.remembered("score", name, parameter))

    def begin(self, context: Context) -> None:
        """Begin a new path."""
        super().begin(context)
        for name, parameter in context.student.own_parameters():
            for place in ("start", "last"):  # two tensors: a file cannot hold one under two names
                self.memory[f"{place}/{name}"] = parameter.detach().clone()
            self.memory[f"path/{name}"] = torch.zeros_like(parameter)

    def observe(self, view: View, student: Segmenter) -> None:  # noqa: ARG002
        """``ω += g (θ_last − θ)``."""
        names, parameters, gradients = self.with_gradients(student)
        last, path = ([self.memory[f"{kind}/{name}"] for name in names] for kind in ("last", "path"))
        moved = torch._foreach_sub(last, parameters)
        saved = torch._foreach_add(path, torch._foreach_mul(gradients, moved))
        self.memory |= {f"path/{name}": value for name, value in zip(names, saved, strict=True)}
        self.memory |= {f"last/{name}": value.clone() for name, value in zip(names, parameters, strict=True)}

    def end(self, context: Context) -> None:
        """Turn the path into a score on top of earlier ones."""
        for name, parameter in context.student.own_parameters():
            distance = (parameter.detach() - self.memory[f"start/{name}"]).square() + 1e-20
            gained = torch.relu(self.memory[f"path/{name}"] / distance)
            self.memory[f"score/{name}"] = gained + self.remembered("score", name, parameter)


@dataclass
class RiemannianWalk(ImportancePenalty):
    """Ω = minmax(F) + minmax(score), the score being the loss saved per distance in the Fisher metric."""

    weight: float = 100.0
    every: int = 10
    """Iterations between two looks at the path."""

    def importance(self, name: str, parameter: Tensor) -> Tensor:
        """Fisher information and path together."""
        fisher, score = (self.remembered(kind, name, parameter) for kind in ("fisher", "score"))
        return losses.min_max(fisher) + losses.min_max(score)

    def begin(self, context: Context) -> None:
        """Begin a new path."""
        super().begin(context)
        self.memory["iteration"] = torch.zeros((), dtype=torch.int64)
        for name, parameter in context.student.own_parameters():
            self.memory[f"path/{name}"] = torch.zeros_like(parameter)

    def observe(self, view: View, student: Segmenter) -> None:  # noqa: ARG002
        """Follow the path at iterations 0, 10, 20 …, then update F: the path is measured with F of before."""
        iteration = self.memory["iteration"].cpu()  # a checkpoint brings it on the device, for which nobody waits
        if int(iteration) % self.every == 0:
            self._follow_path(student, starts=int(iteration) == 0)
        self.memory["iteration"] = iteration + 1
        self.watch_fisher(student)

    def _follow_path(self, student: Segmenter, *, starts: bool) -> None:
        """``path += gΔ / (½FΔ² + 1e-8)``, Δ = θ_last − θ; at its start there is no θ_last."""
        for name, parameter, gradient in zip(*self.with_gradients(student), strict=True):
            if not starts:
                moved = self.memory[f"last/{name}"] - parameter
                distance = 0.5 * self.remembered("fisher", name, parameter, start=1.0) * moved.square() + 1e-8
                self.memory[f"path/{name}"] = self.memory[f"path/{name}"] + gradient * moved / distance
            self.memory[f"last/{name}"] = parameter.clone()

    def end(self, context: Context) -> None:
        """``score ← ½ (relu(path) + score)``, or ``relu(path)`` where there is no score yet."""
        for name, _ in context.student.own_parameters():
            path, score = torch.relu(self.memory[f"path/{name}"]), self.memory.get(f"score/{name}")
            self.memory[f"score/{name}"] = path if score is None else 0.5 * (path + score)


@register_method(
    "ewc",
    "keep important parameters near their old values; importance is Fisher information",
    paper="Kirkpatrick et al., Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017",
)
def ewc(weight: Weight = 500.0) -> Sequence[Part]:
    """``L = L_ce + λ Σ minmax(F) (θ−θ*)²``."""
    return [CrossEntropy(), ElasticWeights(weight)]


@register_method(
    "pi",
    "keep important parameters near their old values; importance is what their changes contributed to the loss",
    paper="Zenke et al., Continual Learning through Synaptic Intelligence, ICML 2017",
)
def pi(weight: Weight = 500.0) -> Sequence[Part]:
    """``L = L_ce + λ Σ minmax(score) (θ−θ*)²``."""
    return [CrossEntropy(), PathIntegral(weight)]


@register_method(
    "rw",
    "keep important parameters near their old values; importance as in ewc and pi together",
    paper="Chaudhry et al., Riemannian Walk for Incremental Learning, ECCV 2018",
)
def rw(weight: Weight = 100.0) -> Sequence[Part]:
    """``L = L_ce + λ Σ (minmax(F) + minmax(score)) (θ−θ*)²``."""
    return [CrossEntropy(), RiemannianWalk(weight)]
