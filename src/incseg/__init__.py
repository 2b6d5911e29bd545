"""incseg: class-incremental semantic segmentation without the old data and without forgetting."""

__version__ = "0.1.0"
