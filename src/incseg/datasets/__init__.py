"""Datasets: class names, and images with masks to learn from and to be scored on."""

from incseg.datasets.source import (
    Source,
    Split,
    dataset,
    dataset_entry,
    dataset_names,
    describe_datasets,
    open_source,
)

__all__ = ["Source", "Split", "dataset", "dataset_entry", "dataset_names", "describe_datasets", "open_source"]
