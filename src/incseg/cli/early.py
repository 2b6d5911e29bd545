"""What can be refused at once: PyTorch takes seconds to import, and a misspelt name should not."""

from pathlib import Path

from incseg.config import RunConfig
from incseg.protocol import Protocol
from incseg.registry import DATASETS, METHODS
from incseg.run_folder import model_file


def refuse_unknown_method(text: str) -> None:
    """Refuse a sum with a name that no method has; what else is wrong with a sum, ``methods.parse`` finds."""
    for name in filter(None, "".join(text.split()).split("+")):
        METHODS.refuse_unknown(name, text, spellings=(name, f"{name}+"))


def refuse_unknown_dataset(name: str) -> None:
    """Refuse a name that no dataset has."""
    DATASETS.refuse_unknown(name)


def refuse_missing_data(config: RunConfig) -> None:
    """Refuse a dataset that does not exist, and a folder that is not there, in the words of the dataset."""
    from incseg.datasets import dataset_entry

    name, root = Protocol.parse(config.protocol).dataset, config.data.root
    refuse_unknown_dataset(name)
    if root is None or not root.is_dir():
        dataset_entry(name).read(root, config.data)


def refuse_missing_models(*paths: Path, step: int | None = None) -> None:
    """Refuse a path that holds no model, and a step that it does not have."""
    for path in paths:
        model_file(path, step)
