"""A method in one file: incseg train shapes/4-2/overlapped --plugin examples/repel.py --method mib+repel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from incseg import losses
from incseg.batch import View
from incseg.methods import CrossEntropy, LossTerm, Part, default, register_method
from incseg.methods.pixels import grid_size, labels_on_grid, pixels_on_grid


@dataclass
class ClassRepulsion(LossTerm):
    """``λ/|pairs| Σ_{i≠j} 1/‖μ_i − μ_j‖`` over the classes of a batch, with μ their mean embeddings."""

    first_step: ClassVar[str | None] = "class repulsion"  # it also trains at step 0, so that one cannot be shared
    weight: float = 0.1

    def losses(self, view: View) -> dict[str, Tensor]:
        """One scalar, on one pixel for every 16 by 16 of the image."""
        size = grid_size(view, stride=16)
        pixels = pixels_on_grid(view.student.embedding, size)
        labels = labels_on_grid(view.targets, size).flatten()
        means, ids = losses.class_means(
            pixels[None], labels[None], num_classes=view.step.num_classes, across_processes=True
        )
        return {"repel": self.weight * losses.repulsion(means[0], ids[0] >= 0)}


@register_method("repel", "push the mean embeddings of the classes in a batch apart", paper="an example")
def repel(weight: float = 0.1) -> Sequence[Part]:
    """``L = L_ce + λ L_repel``."""
    return [default(CrossEntropy()), ClassRepulsion(weight)]
