"""DKD: sigmoids, distilled whole and in what speaks for and against a class; new heads begin as a trained no."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from incseg import losses
from incseg.batch import View
from incseg.config import HeadKind
from incseg.methods.finetune import WeightedBinaryCrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Distillation, Initialisation, LossTerm, Part, Positive, Weight
from incseg.models import Segmenter

AUXILIARY = "auxiliary"  # the submodule of the student, so that it is optimised and saved with it


@dataclass
class DecomposedDistillation(Distillation):
    """The sigmoids of the old classes follow the teacher's, whole, and of what speaks for and against a class.

    These two are compared on the embedding's grid, the whole at the size of the image.
    """

    heads: ClassVar[tuple[HeadKind, ...]] = ("sigmoid",)
    needs_teacher: ClassVar[bool] = True
    weight: float = 5.0
    decomposed_weight: float = 5.0
    _student: Segmenter = field(init=False, repr=False, compare=False)
    _teacher_weight: Tensor = field(init=False, repr=False, compare=False)

    def begin(self, context: Context) -> None:
        """Keep hold of the classifiers."""
        self._student = context.student
        if context.teacher is not None:
            self._teacher_weight = _foreground_weight(context.teacher)

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ L_kd + λ_d (L_pos + L_neg)``, each a mean over pixels and a sum over the old classes."""
        assert view.teacher is not None
        old = view.step.old
        student, teacher = (outputs.scores_for(view.labels).of(old) for outputs in (view.student, view.teacher))
        weight = _foreground_weight(self._student)[: len(old)]
        positive, negative = (
            len(old) * losses.sigmoid_distillation(ours, theirs)
            for ours, theirs in zip(
                losses.decomposed_logits(view.student.embedding, weight),
                losses.decomposed_logits(view.teacher.embedding, self._teacher_weight),
                strict=True,
            )
        )
        return {
            "distillation": self.weight * len(old) * losses.sigmoid_distillation(student, teacher),
            "positive": self.decomposed_weight * positive,
            "negative": self.decomposed_weight * negative,
        }


def _foreground_weight(network: Segmenter) -> Tensor:
    """(C, D, k, k) the classifier's weights, of a sigmoid head: all classes but background."""
    return torch.cat([head.get_parameter("weight") for head in network.trained_head.heads])


@dataclass
class AuxiliaryInitialisation(Initialisation, LossTerm):
    """New classes begin as a classifier that has learnt to say no everywhere, beside the network, step after step."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("sigmoid",)
    needs_new_classes: ClassVar[bool] = True
    weight: float = 1.0
    _auxiliary: nn.Conv2d = field(init=False, repr=False, compare=False)

    def begin(self, context: Context) -> None:
        """Copy it to every class of the new head; it is trained on, from where the last step left it."""
        head, device = context.student.trained_head, context.student.mean.device
        torch.manual_seed(context.seed)
        auxiliary = nn.Conv2d(head.channels, 1, head.kernel_size, padding=head.kernel_size // 2).to(device)
        if context.teacher is not None:
            auxiliary.load_state_dict(self.memory)
            newest = head.heads[-1].state_dict()
            for name, tensor in self.memory.items():
                newest[name].copy_(tensor.expand_as(newest[name]))
        context.student.add_module(AUXILIARY, auxiliary)
        self._auxiliary = auxiliary

    def losses(self, view: View) -> dict[str, Tensor]:
        """``λ_ac mean log(1 + exp z)`` of features through which no gradient flows."""
        return {AUXILIARY: self.weight * F.softplus(self._auxiliary(view.student.embedding.detach())).mean()}

    def end(self, context: Context) -> None:
        """Move it from the network to the memory."""
        self.memory = {name: tensor.detach().clone() for name, tensor in self._auxiliary.state_dict().items()}
        delattr(context.student, AUXILIARY)


@register_method(
    "dkd",
    "sigmoids, distilled also in what speaks for and against a class; new heads begin as a trained no",
    paper="Baek et al., Decomposed Knowledge Distillation for Class-Incremental Semantic Segmentation, NeurIPS 2022",
)
def dkd(
    kd_weight: Weight = 5.0,
    decomposed_weight: Weight = 5.0,
    auxiliary_weight: Weight = 1.0,
    first_positive_weight: Positive = 2.0,
    positive_weight: Positive = 1.0,
) -> Sequence[Part]:
    """``L = L_bce + λ_kd L_kd + λ_d (L_pos + L_neg) + λ_ac L_ac``; the weights of a yes are those for VOC."""
    return [
        WeightedBinaryCrossEntropy(first_positive_weight, positive_weight),
        DecomposedDistillation(kd_weight, decomposed_weight),
        AuxiliaryInitialisation(auxiliary_weight),
    ]
