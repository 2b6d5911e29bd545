"""Methods as sums of parts: ``parse("mib+ucd")``, or ``mib() + ucd()``."""

from incseg.methods.base import (
    Context,
    Contrast,
    Distillation,
    LossTerm,
    Method,
    Part,
    Penalty,
    Segmentation,
)
from incseg.methods.contrast import pixel, segment
from incseg.methods.finetune import ft, joint
from incseg.methods.mib import mib
from incseg.methods.registry import describe_methods, method_names, parse
from incseg.methods.ucd import cd, ucd

__all__ = [
    "Context",
    "Contrast",
    "Distillation",
    "LossTerm",
    "Method",
    "Part",
    "Penalty",
    "Segmentation",
    "cd",
    "describe_methods",
    "ft",
    "joint",
    "method_names",
    "mib",
    "parse",
    "pixel",
    "segment",
    "ucd",
]

# A method in a file of its own is here under its name too, before its module of the same name.
globals().update({entry.name: entry.build for entry in describe_methods()})
