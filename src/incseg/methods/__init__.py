"""Methods as sums of parts: ``parse("mib+ucd")``, or ``(mib() + ucd()).resolve()``."""

from incseg.methods.background_shift import mbs
from incseg.methods.contrast import cd, pixel, segment, ucd
from incseg.methods.decomposed import dkd
from incseg.methods.feature_replay import star
from incseg.methods.finetune import CrossEntropy, ft, joint
from incseg.methods.freeze_and_fuse import dft, ewf
from incseg.methods.generated_replay import recall
from incseg.methods.knowledge_distillation import ilt, ilt_plus, lwf, lwf_mc
from incseg.methods.latent_space import sdr
from incseg.methods.local_pod import plop
from incseg.methods.method import Method, MethodSum
from incseg.methods.parsing import (
    default_settings,
    describe_methods,
    method_names,
    parse,
    register_method,
    require_head,
    summands,
)
from incseg.methods.part import (
    Context,
    Contrast,
    Distillation,
    Initialisation,
    LossTerm,
    Part,
    Penalty,
    Segmentation,
    default,
)
from incseg.methods.pooled_cubes import rcil
from incseg.methods.regularisation import ewc, pi, rw
from incseg.methods.rehearsal import GivenOldImages, emseg
from incseg.methods.ridge import ClosedForm, analytic
from incseg.methods.tuned_heads import nest
from incseg.methods.unbiased import mib
from incseg.methods.unknown_class import ssul

__all__ = [
    "ClosedForm",
    "Context",
    "Contrast",
    "CrossEntropy",
    "Distillation",
    "GivenOldImages",
    "Initialisation",
    "LossTerm",
    "Method",
    "MethodSum",
    "Part",
    "Penalty",
    "Segmentation",
    "analytic",
    "cd",
    "default",
    "default_settings",
    "describe_methods",
    "dft",
    "dkd",
    "emseg",
    "ewc",
    "ewf",
    "ft",
    "ilt",
    "ilt_plus",
    "joint",
    "lwf",
    "lwf_mc",
    "mbs",
    "method_names",
    "mib",
    "nest",
    "parse",
    "pi",
    "pixel",
    "plop",
    "rcil",
    "recall",
    "register_method",
    "require_head",
    "rw",
    "sdr",
    "segment",
    "ssul",
    "star",
    "summands",
    "ucd",
]
