"""What a safetensors file says of itself: read without its tensors, and without PyTorch."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from incseg.checksums import unsealed
from incseg.errors import DamagedError, InputError

KEY = "incseg"  # the only key of the metadata: with two, their order in the file would be a matter of chance
STATISTICS = "ClosedForm."  # how the statistics are named among all that a method remembers: after the part they are of


class Header(NamedTuple):
    """The beginning of a file."""

    description: dict[str, Any] | None
    """None for a file that incseg has not written."""
    tensors: list[str]
    """Their names."""


def read_header(path: Path) -> Header:
    """Refuses a file that is damaged or no such file."""
    with explained(path), safe_open(path, framework="numpy") as file:
        metadata, names = (file.metadata() or {}).get(KEY), list(file.keys())
    return Header(None if metadata is None else unsealed(_parsed(metadata), path), names)


def require_description(path: Path, description: dict[str, Any] | None) -> dict[str, Any]:
    """Refuse a file that incseg has not written."""
    if description is None:
        raise InputError(
            f"{path} was not written by incseg: it does not say how to build the model (for models trained elsewhere "
            "see: incseg import --help)."
        )
    return description


def refuse_statistics(path: Path, names: Iterable[str]) -> None:
    """Refuse to gather again what is among the tensors of a file."""
    if any(name.startswith(STATISTICS) for name in names):
        raise InputError(f"{path} already holds statistics of this model: add --overwrite to replace them.")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say in a sentence why a file cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"there is no model file {path}.") from None
    except (SafetensorError, ValueError) as error:  # a flipped bit may also turn a name into no text at all
        exported = " An exported file is for other programs: give the model it was exported from."
        hint = exported if path.suffix in (".onnx", ".pt2") else ""
        raise DamagedError(f"{path} is not a readable safetensors file ({error}).{hint}") from None


def _parsed(metadata: str) -> object:
    try:
        return json.loads(metadata)
    except json.JSONDecodeError:
        return None
