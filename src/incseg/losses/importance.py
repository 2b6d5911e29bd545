"""Importance-weighted penalties: parameters that were important for earlier steps move less."""

from torch import Tensor


def min_max(importance: Tensor) -> Tensor:
    """Scale to [0, 1] over the tensor: ``(x − min)/(max − min + 1e-8)``, as in MiB's code.

    The addend matters: the Fisher information of a trained network is of its order, and then stays well below 1.

    Args:
        importance: any shape, float.
    """
    lowest, highest = importance.min(), importance.max()
    return (importance - lowest) / (highest - lowest + 1e-8)


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
