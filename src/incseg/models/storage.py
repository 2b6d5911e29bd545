"""A model on disk: one safetensors file that says itself how to build it, what its channels mean and how it learnt."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from incseg.errors import InputError
from incseg.files import replacing
from incseg.models.segmenter import Architecture, Segmenter

Record = Mapping[str, Any]  # what a model knows of one step of its past; see engine/results.py


@dataclass(frozen=True)
class Description:
    """What a model file says of itself before any weight is read."""

    architecture: Architecture
    head_sizes: list[int]
    classes: tuple[str, ...]
    history: list[Record] = field(default_factory=list)
    """One record per step learnt, oldest first; empty for a model trained elsewhere."""


def save_model(segmenter: Segmenter, classes: Sequence[str], path: Path, history: Sequence[Record] = ()) -> None:
    """Write weights, architecture, head sizes, class names and history; a reader never sees half a file."""
    description = {
        "architecture": segmenter.architecture.model_dump(mode="json"),
        "head_sizes": segmenter.classifier.head_sizes,
        "classes": list(classes),
        "history": list(history),
    }
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in segmenter.state_dict().items()}
    with replacing(path) as temporary:
        save_file(state, temporary, metadata={"incseg": json.dumps(description)})


def describe_model(path: Path) -> Description:
    """Read what a model file says of itself."""
    return _read(path, weights=False)[0]


def load_model(path: Path, device: torch.device | str = "cpu") -> tuple[Segmenter, tuple[str, ...]]:
    """Rebuild a saved segmenter, in evaluation mode, and its class names, background first."""
    description, state = _read(path)
    segmenter = Segmenter(description.architecture, description.head_sizes)
    segmenter.load_state_dict(state)
    return segmenter.eval().to(device), description.classes


def _read(path: Path, *, weights: bool = True) -> tuple[Description, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = (file.metadata() or {}).get("incseg")
            state = {name: file.get_tensor(name) for name in file.keys()} if weights else {}  # noqa: SIM118 - no dict
    except FileNotFoundError:
        raise InputError(f"there is no model file {path}.") from None
    except SafetensorError as error:
        raise InputError(f"{path} is not a readable safetensors file ({error}).") from None
    if metadata is None:
        raise InputError(
            f"{path} was not written by incseg: it does not say how to build the model (for models trained elsewhere "
            "see: incseg import --help)."
        )
    values = json.loads(metadata)
    architecture = Architecture(**values["architecture"])
    history = values.get("history", [])  # files of version 0.1.0 and before have none
    return Description(architecture, values["head_sizes"], tuple(values["classes"]), history), state
