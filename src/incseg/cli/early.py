"""What can be refused at once: PyTorch takes seconds to import, and a misspelt name should not."""

import socket
from pathlib import Path

from incseg.config import RunConfig
from incseg.errors import InputError
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


def refuse_address(host: str, port: int | None) -> None:
    """Refuse an address at which this machine cannot listen: a server would try every port, and wait."""
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host or None, port or 0, type=socket.SOCK_STREAM)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"this machine cannot listen at {host!r}, port {port or 'any'} ({reason}): use 127.0.0.1, 0.0.0.0 or an "
            "address of its own, and a free port."
        ) from None


def refuse_missing_models(*paths: Path, step: int | None = None) -> None:
    """Refuse a path that holds no model, and a step that it does not have."""
    for path in paths:
        model_file(path, step)
