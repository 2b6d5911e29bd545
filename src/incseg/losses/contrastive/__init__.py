"""Contrastive distillation (UCD eq. 3–11): one definition, and backends that are tested against it."""

from incseg.losses.contrastive.interface import (
    Backend,
    Denominator,
    contrastive_distillation,
    contrastive_distillation_global,
    share_with_positive,
)

__all__ = [
    "Backend",
    "Denominator",
    "contrastive_distillation",
    "contrastive_distillation_global",
    "share_with_positive",
]
