"""NeST: the weights of a new class as a combination of the weights of old ones."""

import torch
from torch import Tensor


def channel_importance(features: Tensor, probs: Tensor, weights: Tensor) -> Tensor:
    """How much every channel of every old class speaks for the pixels of a new one (NeST), summed over these pixels.

    ``B[o, d] = Σ_p [w_od f_pd > 0] q_p(o)`` with q the probabilities of the old network.

    Args:
        features: f, (P, D) float, the embeddings of the pixels.
        probs: q, (P, O) float.
        weights: w, (O, D) float, one row per old class, background among them.

    Returns:
        (O, D); 0 without pixels. Sums of several batches or processes add up.
    """
    dtype = probs.dtype
    of_positive = probs.T @ (features > 0).to(dtype)
    of_negative = probs.T @ (features < 0).to(dtype)
    return torch.where(weights > 0, of_positive, torch.where(weights < 0, of_negative, 0))


def combined_heads(matrices: Tensor, vectors: Tensor, weights: Tensor) -> Tensor:
    """``w_c = v_cᵀ (M_c ⊙ W)`` (NeST): every channel of a new class combines that channel of all old classes.

    Args:
        matrices: M, (C, O, D) float.
        vectors: v, (C, O) float.
        weights: W, (O, D) float, of the old classes.

    Returns:
        (C, D).
    """
    return torch.einsum("co,cod,od->cd", vectors, matrices, weights)


def with_mean_norm(new: Tensor, old: Tensor) -> Tensor:
    """Weights in proportion to ``new`` whose rows are on average as long as those of ``old``; zeros stay zeros.

    Args:
        new: (C, D) float.
        old: (O, D) float.
    """
    new_length, old_length = (rows.square().sum(dim=1).sqrt().mean() for rows in (new, old))
    return new / new_length.clamp_min(torch.finfo(new.dtype).tiny) * old_length
