"""Datasets as labelling tools export them: found by a folder's contents, and turned into images with index masks."""

from incseg.datasets.formats.conversion import convert, open_foreign
from incseg.datasets.formats.detection import format_names

__all__ = ["convert", "format_names", "open_foreign"]
