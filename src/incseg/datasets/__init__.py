"""Datasets, which images and labels a step may see, and how they become batches."""

from incseg.datasets.source import Source, Split, dataset_entry, dataset_names, describe_datasets, open_source

__all__ = ["Source", "Split", "dataset_entry", "dataset_names", "describe_datasets", "open_source"]
