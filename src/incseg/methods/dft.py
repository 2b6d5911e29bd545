"""DFT: a control. Freeze all that step 0 learnt, and train nothing but the new head."""

from collections.abc import Sequence
from dataclasses import dataclass

from incseg.methods.base import Context, Part, default
from incseg.methods.finetune import CrossEntropy
from incseg.methods.registry import method


@dataclass
class FrozenBody(Part):
    """After step 0 encoder, decoder and old heads keep their weights and their statistics."""

    def begin(self, context: Context) -> None:
        """Freeze, and switch batch normalisation to its statistics."""
        if context.teacher is None:
            return
        student = context.student
        for module in (student.encoder, student.decoder, *list(student.classifier.heads)[:-1]):
            module.requires_grad_(False).eval()


@method(
    "dft",
    "freeze the network after step 0 and train each new head alone: a control",
    paper="DFT*, the control of RevisitingCSS",
)
def dft() -> Sequence[Part]:
    """``L = L_ce``, on the newest head's parameters.

    The published variant has the heads of all future steps from the start and knows their number; ours grows.
    """
    return [default(CrossEntropy()), FrozenBody()]
