"""SSUL: a frozen network that learns each step in a branch of its own, and what no class describes as *unknown*."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.config import HeadKind
from incseg.errors import InputError
from incseg.methods.freeze_and_fuse import FrozenBody
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Initialisation, Part, Segmentation, Share
from incseg.models.branched import UNKNOWN, BranchedHead
from incseg.models.segmenter import Segmenter
from incseg.protocol import BACKGROUND, IGNORE, Step


@dataclass
class UnknownCrossEntropy(Segmentation):
    """Binary cross-entropy over all classes, background and unknown: all that is background, or what of it is salient.

    After step 0 it is first labelled by the teacher: with the class it predicts, if the sigmoid of that is certain.
    """

    heads: ClassVar[tuple[HeadKind, ...]] = ("branched",)
    needs_teacher: ClassVar[bool] = True
    uses_saliency: ClassVar[bool] = True
    confidence: float = 0.7

    def check(self, steps: Sequence[Step], classes: Sequence[str]) -> None:
        """Refuse as many classes as leave no number for unknown."""
        if steps[-1].num_classes >= IGNORE:
            raise InputError(
                f"'{self.origin}' learns at most {IGNORE - 2} classes, one fewer than others, and there are "
                f"{len(classes) - 1}: use another method."
            )

    def relabel(self, view: View) -> Tensor | None:
        """Background becomes a certain old class, or unknown, whose number is that of the student's last channel.

        Where there are saliency maps, background that is neither certain nor salient stays background.
        """
        unknown = torch.full_like(view.labels, view.step.num_classes)
        if view.salient is not None:
            unknown = torch.where(view.salient, unknown, BACKGROUND)
        if view.teacher is not None and not view.step.complete:
            highest, predicted = view.teacher_logits.max(dim=1)
            certain = (predicted != BACKGROUND) & (highest.sigmoid() >= self.confidence)
            unknown = torch.where(certain, predicted, unknown)
        return torch.where(view.labels == BACKGROUND, unknown, view.labels)

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_bce`` over all channels."""
        return {"segmentation": losses.binary_cross_entropy(view.student_logits, view.targets)}


@dataclass
class UnknownInitialisation(Initialisation):
    """New classes begin as what is unknown."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("branched",)

    def begin(self, context: Context) -> None:
        """Copy the branch of unknown; step 0 begins as PyTorch does."""
        if context.teacher is not None:
            _branched(context.student).begin_with_unknown()


@dataclass
class FrozenButUnknown(FrozenBody):
    """After step 0 only the convolutions of the newest branch and of unknown learn; no batch normalisation does."""

    heads: ClassVar[tuple[HeadKind, ...]] = ("branched",)

    def begin(self, context: Context) -> None:
        """Freeze all but these."""
        super().begin(context)
        if context.teacher is None:
            return
        branches = _branched(context.student).branches
        for branch in (branches[UNKNOWN], branches[-1]):
            branch.eval().requires_grad_(False)
            for layer in branch:
                layer.requires_grad_(isinstance(layer, torch.nn.Conv2d))


def _branched(student: Segmenter) -> BranchedHead:
    head = student.trained_head
    assert isinstance(head, BranchedHead), "a run begins by asking every part for the heads it works with"
    return head


@register_method(
    "ssul",
    "freeze the network after step 0; each step gets a branch of its own, and what no class describes is unknown (with "
    "--data.saliency: what of it is salient)",
    paper="Cha et al., SSUL: Semantic Segmentation with Unknown Label for Exemplar-based Class-Incremental Learning, "
    "NeurIPS 2021",
)
def ssul(confidence: Share = 0.7) -> Sequence[Part]:
    """``L = L_bce`` over background, classes and unknown, with pseudo-labels; no memory."""
    return [UnknownCrossEntropy(confidence), UnknownInitialisation(), FrozenButUnknown()]
