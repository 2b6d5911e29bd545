"""Datasets: what one is, one file for each, and how to get, check and scan them."""

from incseg.datasets.source import (
    ReportProgress,
    Source,
    Split,
    dataset,
    dataset_entry,
    dataset_names,
    describe_datasets,
    open_source,
    read_lines,
)

__all__ = [
    "ReportProgress",
    "Source",
    "Split",
    "dataset",
    "dataset_entry",
    "dataset_names",
    "describe_datasets",
    "open_source",
    "read_lines",
]
