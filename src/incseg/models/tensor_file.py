"""Tensors on disk: a safetensors file that describes its content and carries its checksum."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from incseg.checksums import sealed, unsealed
from incseg.errors import DamagedError, InputError
from incseg.files import replacing

KEY = "incseg"  # the only key of the metadata: with two, their order in the file would be a matter of chance


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any] | None = None) -> None:
    """Replace a file; a reader never sees half of it."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = sealed({**(description or {}), "tensors": checksum_of(state)})
    content = save(state, metadata={KEY: json.dumps(metadata)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: Path, *, only_description: bool = False) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The description, None if the file has none, and the tensors; refuses a file that is damaged or no such file."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = (file.metadata() or {}).get(KEY)
            names = [] if only_description else list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise InputError(f"there is no model file {path}.") from None
    except (SafetensorError, ValueError) as error:  # a flipped bit may also turn a name into no text at all
        exported = " An exported file is for other programs: give the model it was exported from."
        hint = exported if path.suffix in (".onnx", ".pt2") else ""
        raise DamagedError(f"{path} is not a readable safetensors file ({error}).{hint}") from None
    if metadata is None:
        return None, tensors
    description = unsealed(_parsed(metadata), path)
    expected = description.pop("tensors", None)
    if expected is not None and not only_description and expected != checksum_of(tensors):
        raise DamagedError(f"{path} is damaged: its tensors do not match their checksum.")
    return description, tensors


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 over names, types, shapes and bytes."""
    found = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        found = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def _parsed(metadata: str) -> object:
    try:
        return json.loads(metadata)
    except json.JSONDecodeError:
        return None
