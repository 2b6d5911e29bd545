"""Which images and labels a step may see: the steps of a protocol, published lists, and extensions."""

from incseg.curriculum.curriculum import Curriculum, Library
from incseg.curriculum.extension import BACKGROUND_NAMES, Extension, new_classes, plain
from incseg.curriculum.protocol_curriculum import ProtocolCurriculum, build_curriculum

__all__ = [
    "BACKGROUND_NAMES",
    "Curriculum",
    "Extension",
    "Library",
    "ProtocolCurriculum",
    "build_curriculum",
    "new_classes",
    "plain",
]
