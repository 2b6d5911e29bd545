"""Which images and labels a step may see: the steps of a protocol, published lists, and extensions."""

from incseg.curriculum.curriculum import Curriculum, Library
from incseg.curriculum.extension import Extension
from incseg.curriculum.protocol_curriculum import ProtocolCurriculum, build_curriculum

__all__ = [
    "Curriculum",
    "Extension",
    "Library",
    "ProtocolCurriculum",
    "build_curriculum",
]
