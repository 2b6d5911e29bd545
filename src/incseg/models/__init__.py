"""Networks: an encoder, a decoder, and a classifier that grows with every step."""

from incseg.models.segmenter import Architecture, Segmenter

__all__ = ["Architecture", "Segmenter"]
