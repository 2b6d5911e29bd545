"""Losses from coarse logits: as at the size of the image, without ever having that size on a GPU.

The functions in ``segmentation``, ``distillation`` and ``teacher_labels`` are the definition. They take logits at the
size of the image or :class:`~incseg.upsampling.CoarseLogits`, and ask here whether kernels compute the same from these.
"""

from incseg.losses.coarse.choice import enlarge, is_fused
from incseg.losses.coarse.fused import label_losses, read_pixels, teacher_losses

__all__ = ["enlarge", "is_fused", "label_losses", "read_pixels", "teacher_losses"]
