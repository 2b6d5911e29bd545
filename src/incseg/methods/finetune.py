"""The two references: fine-tuning, which forgets, and joint training on the data of all steps, which does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods.parsing import register_method
from incseg.methods.part import Part, Segmentation


@dataclass
class CrossEntropy(Segmentation):
    """Cross-entropy with the targets."""

    def losses(self, view: View) -> dict[str, Tensor]:
        """``L_ce``."""
        return {"segmentation": losses.cross_entropy(view.student_scores, view.targets)}


@dataclass
class AllData(Part):
    """Keep every image and label seen so far."""

    keeps_data: ClassVar[bool] = True


@register_method("ft", "fine-tune on the new classes and do nothing about forgetting: the lower reference", paper="–")
def ft() -> Sequence[Part]:
    """``L = L_ce``."""
    return [CrossEntropy()]


@register_method(
    "joint", "train on the data and labels of all steps so far: the upper reference", paper="–", alone=True
)
def joint() -> Sequence[Part]:
    """``L = L_ce`` on everything."""
    return [CrossEntropy(), AllData()]
