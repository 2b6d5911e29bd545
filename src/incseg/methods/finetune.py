"""The two references: plain fine-tuning, which forgets, and training with everything, which need not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods.base import Part, Segmentation
from incseg.methods.registry import method


@dataclass
class CrossEntropy(Segmentation):
    """Cross-entropy with the targets."""

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_ce``."""
        return {"segmentation": losses.cross_entropy(view.student_logits, view.targets)}


@dataclass
class AllData(Part):
    """Keep every image and label seen so far."""

    keeps_data: ClassVar[bool] = True


@method("ft", "fine-tune on the new classes and do nothing about forgetting: the lower reference", paper="–")
def ft() -> Sequence[Part]:
    """``L = L_ce``."""
    return [CrossEntropy()]


@method("joint", "train on the data and labels of all steps so far: the upper reference", paper="–", alone=True)
def joint() -> Sequence[Part]:
    """``L = L_ce`` on everything."""
    return [CrossEntropy(), AllData()]
