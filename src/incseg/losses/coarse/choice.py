"""Which logits a loss is given, and whether kernels take them as they are."""

from functools import cache
from typing import TypeGuard

import torch

from incseg.losses.coarse.fused import label_losses, read_pixels, teacher_losses
from incseg.losses.triton_support import builds, runs_triton
from incseg.upsampling import CoarseLogits, Scores, interpolate

# Pixels per node from which on the image is worth avoiding; below, it is hardly larger than the grid.
LEAST_ENLARGEMENT = 16


def enlarge(scores: CoarseLogits, *, fused: bool) -> Scores:
    """What losses are given for logits that are meant for a size.

    ``fused``: the logits as they are where kernels can take them, elsewhere (B, C, H, W) by two matrix products. Not
    ``fused``: (B, C, H, W) by PyTorch's interpolation.
    """
    if not fused:
        return interpolate(scores)
    return scores if is_fused(scores) else scores.full_size()


def is_fused(scores: Scores) -> TypeGuard[CoarseLogits]:
    """Whether kernels compute a loss of these logits, without ever having them at the size of the image."""
    if not isinstance(scores, CoarseLogits) or scores.logits.dtype == torch.float64:
        return False
    height, width = scores.size
    nodes, pixels = scores.logits.shape[2:].numel(), height * width
    large = scores.logits.numel() > 0 and pixels >= LEAST_ENLARGEMENT * nodes
    return large and runs_triton(scores.logits) and _compiles(scores.logits.device)


@cache
def _compiles(device: torch.device) -> bool:
    """Tried with sizes above 1, for which Triton builds other code than for 1."""

    @torch.enable_grad()
    def all_kernels() -> None:
        example = CoarseLogits(torch.zeros(2, 3, 2, 2, device=device, requires_grad=True), (8, 8))
        labels, _ = read_pixels(example, "probability")
        label_losses(example, labels).sum().backward()
        before = CoarseLogits(example.logits[:, :2].detach(), example.size)
        teacher_losses(example, before, merge_new=True).sum().backward()

    return builds(all_kernels, "losses are computed without fused kernels")
