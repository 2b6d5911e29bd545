"""Importance-weighted penalties: parameters that were important for earlier steps move less."""

from torch import Tensor


def min_max(importance: Tensor) -> Tensor:
    """Scale to [0, 1] over the tensor: ``(x − min)/(max − min)``; 0 everywhere if all are equal.

    Args:
        importance: any shape, float.
    """
    lowest, highest = importance.min(), importance.max()
    spread = highest - lowest
    return (importance - lowest) / spread.where(spread > 0, 1)


def weighted_distance(now: Tensor, before: Tensor, importance: Tensor) -> Tensor:
    """``Σ_i Ω_i (θ_i − θ*_i)²``.

    Args:
        now: θ, any shape, float.
        before: θ*, the same shape; no gradient flows into it.
        importance: Ω, the same shape.

    Returns:
        A scalar; 0 for an empty tensor.
    """
    # θ comes first: its memory layout decides the order of the sum. That of Ω may change when it is saved and loaded.
    return ((now - before.detach()).square() * importance).sum()
