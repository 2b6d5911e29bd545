"""The mathematics: pure functions of tensors, free of engine, data and configuration."""

from incseg.losses.contrastive import contrastive_distillation, contrastive_distillation_global
from incseg.losses.distillation import unbiased_distillation
from incseg.losses.extended import extended_map
from incseg.losses.prototypes import class_means
from incseg.losses.segmentation import cross_entropy, unbiased_cross_entropy

__all__ = [
    "class_means",
    "contrastive_distillation",
    "contrastive_distillation_global",
    "cross_entropy",
    "extended_map",
    "unbiased_cross_entropy",
    "unbiased_distillation",
]
