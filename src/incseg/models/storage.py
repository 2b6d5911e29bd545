"""A model on disk: one safetensors file that says itself how to build it and what its channels mean."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from incseg.errors import InputError
from incseg.files import replacing
from incseg.models.segmenter import Architecture, Segmenter


def save_model(segmenter: Segmenter, classes: Sequence[str], path: Path) -> None:
    """Write weights, architecture, head sizes and class names; a reader never sees half a file."""
    description = {
        "architecture": segmenter.architecture.model_dump(mode="json"),
        "head_sizes": segmenter.classifier.head_sizes,
        "classes": list(classes),
    }
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in segmenter.state_dict().items()}
    with replacing(path) as temporary:
        save_file(state, temporary, metadata={"incseg": json.dumps(description)})


def load_model(path: Path, device: torch.device | str = "cpu") -> tuple[Segmenter, tuple[str, ...]]:
    """Rebuild a saved segmenter, in evaluation mode, and its class names, background first."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = (file.metadata() or {}).get("incseg")
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise InputError(f"there is no model file {path}.") from None
    except SafetensorError as error:
        raise InputError(f"{path} is not a readable safetensors file ({error}).") from None
    if metadata is None:
        raise InputError(f"{path} was not written by incseg: it does not say how to build the model.")
    description = json.loads(metadata)
    segmenter = Segmenter(Architecture(**description["architecture"]), description["head_sizes"])
    segmenter.load_state_dict(state)
    return segmenter.eval().to(device), tuple(description["classes"])
