"""What a backend of contrastive distillation receives and provides; without Triton, so that it always imports.

Two modules are such backends: ``chunked`` and ``triton_launch``.
"""

from typing import NamedTuple, Protocol

from torch import Tensor


class ContrastSets(NamedTuple):
    """The anchors R and the rest of the contrast set (eq. 3 and 4); a row with a negative label is not in its set."""

    anchors: Tensor  # (n, D) student features
    anchor_labels: Tensor  # (n,) integer
    contrast: Tensor  # (m, D) everything else in the contrast set, no gradient: the teacher, other processes
    contrast_labels: Tensor  # (m,) integer
    anchor_probs: Tensor | None  # (n, C), or None: σ = 1
    contrast_probs: Tensor | None  # (m, C)


class ContrastSettings(NamedTuple):
    """The settings of the loss."""

    temperature: float
    pair: bool  # the positive joins its own denominator (InfoNCE)
    detach_contrast: bool


State = tuple[Tensor, ...]
"""What ``forward`` saves for ``backward``: L, A and B of every anchor, and whatever else the backend wants to keep."""


class StreamedBackend(Protocol):
    """A way to compute the loss and its gradient without storing all similarities.

    With A_a = 1/(|R| |G(a)|) and B_a = A_a Σ_g σ_ag; see ``chunked`` for how the gradient follows from L, A and B.
    """

    def forward(
        self, sets: ContrastSets, settings: ContrastSettings, anchor_count: Tensor | None
    ) -> tuple[Tensor, State]:
        """The sum of the anchors' losses over |R|, and the state; ``anchor_count`` is |R|, None: of these anchors."""

    def statistics(self, sets: ContrastSets, state: State) -> Tensor:
        """(3, n): L, A and B of every anchor, in the anchors' order."""

    def backward(
        self,
        sets: ContrastSets,
        settings: ContrastSettings,
        state: State,
        upstream: Tensor,
        contrast_stats: Tensor | None,
    ) -> Tensor:
        """(n, D) gradient of the anchors.

        ``contrast_stats`` (3, m') are the statistics, times upstream, of the first m' contrast rows, if those are
        anchors of other processes.
        """
