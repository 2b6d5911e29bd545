"""Tensors on disk: a safetensors file that describes its content and carries its checksum."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from incseg.checksums import sealed
from incseg.errors import DamagedError
from incseg.files import replacing
from incseg.model_header import KEY, explained, read_header


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any] | None = None) -> None:
    """Replace a file; a reader never sees half of it."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = sealed({**(description or {}), "tensors": checksum_of(state)})
    content = save(state, metadata={KEY: json.dumps(metadata)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The description, None if the file has none, and the tensors; refuses a file that is damaged or no such file."""
    description, names = read_header(path)
    with explained(path), safe_open(path, framework="pt", device="cpu") as file:
        tensors = {name: file.get_tensor(name) for name in names}
    expected = description.pop("tensors", None) if description is not None else None
    if expected is not None and expected != checksum_of(tensors):
        raise DamagedError(f"{path} is damaged: its tensors do not match their checksum.")
    return description, tensors


def as_stored(tensor: Tensor) -> Tensor:
    """How a tensor that need not be exact is kept: in float16, unless that cannot hold it."""
    short = tensor.half() if tensor.is_floating_point() else tensor
    return short if short.isfinite().all() else tensor


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 over names, types, shapes and bytes."""
    found = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        found = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"
