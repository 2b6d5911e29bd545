"""Pretrained encoders: from the hub by name, or from a local file."""

import copy
import pickle
import re
import textwrap
import warnings
from pathlib import Path

import segmentation_models_pytorch as smp
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from incseg.errors import InputError
from incseg.models.segmenter import Segmenter
from incseg.models.tensor_file import as_stored


def load_encoder(segmenter: Segmenter, weights: str) -> None:
    """Fill the encoder with ``"imagenet"`` weights from the hub or those of a file; ``"none"`` leaves it as it is.

    A file may be a ``.safetensors`` or a ``.pth`` with the names of torchvision or timm. It may hold more than the
    encoder (a classification head), but nothing of the encoder may be missing.
    """
    if weights != "none":
        _load(segmenter.encoder, segmenter.architecture.encoder, weights)


def original_encoder(segmenter: Segmenter, weights: str) -> nn.Module | None:
    """The encoder of a segmenter with the weights with which its training began; None if it began without.

    Its numbers are rounded to float16, in which it is stored: it takes half the space, and comes back as it was.
    """
    if weights == "none":
        return None
    encoder = copy.deepcopy(segmenter.encoder)
    _load(encoder, segmenter.architecture.encoder, weights)
    with torch.no_grad():
        for tensor in encoder.state_dict().values():
            tensor.copy_(as_stored(tensor))
    return encoder


def _load(encoder: nn.Module, name_of_encoder: str, weights: str) -> None:
    state = _from_hub(name_of_encoder) if weights == "imagenet" else read_state(Path(weights))
    fitted = {}
    for name, tensor in encoder.state_dict().items():
        found = _find(name, state)
        if found is None and name.endswith("num_batches_tracked"):
            continue
        if found is None or found.shape != tensor.shape:
            reason = "is missing" if found is None else f"has shape {tuple(found.shape)}, not {tuple(tensor.shape)}"
            raise InputError(f"the weights '{weights}' do not fit the encoder '{name_of_encoder}': {name} {reason}.")
        fitted[name] = found
    encoder.load_state_dict(fitted, strict=False)


def _find(name: str, state: dict[str, Tensor]) -> Tensor | None:
    """smp wraps timm's encoders one level deep, as ``model.``; files know nothing of that."""
    return state.get(name, state.get(name.removeprefix("model.")))


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` or ``.pth`` file by name, also where it nests them among other things."""
    if not path.is_file():
        raise InputError(f"there is no weights file {path}; give a file, 'imagenet' or 'none'.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # what matters of them is said by _unreadable
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _unreadable(path, error) from error
    for name in ("state_dict", "model"):
        loaded = loaded.get(name, loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise InputError(f"the weights file {path} does not hold tensors by name (a state_dict).")
    return loaded


def _unreadable(path: Path, error: Exception) -> InputError:
    """What to say of a file that PyTorch does not open; never its own advice, to run what the file contains."""
    text = " ".join(str(error).split())
    found = re.search(r"GLOBAL (\S+)|TorchScript", text)  # the file is whole, but holds more than tensors
    if found:
        what = f"Python objects such as {found[1]}" if found[1] else "a program (TorchScript)"
        return InputError(
            f"{path} holds {what} and not only weights, and to read these is to run whatever code they bring: where "
            "the model was made, write torch.save(model.state_dict(), 'weights.pth'), and give that file."
        )
    reason = "it is damaged, or none of PyTorch's" if isinstance(error, pickle.UnpicklingError) else text
    return InputError(
        f"the weights file {path} cannot be read ({type(error).__name__}: {reason}): give a .safetensors or .pth file."
    )


def _from_hub(encoder: str) -> dict[str, Tensor]:
    try:
        if encoder in smp.encoders.encoders:
            state: dict[str, Tensor] = smp.encoders.get_encoder(encoder, weights="imagenet").state_dict()
        else:
            state = timm.create_model(encoder.removeprefix("tu-"), pretrained=True, features_only=True).state_dict()
    except Exception as error:  # the hub's client has no common exception for "not reachable"
        reason = textwrap.shorten(str(error), 120, placeholder="…")
        raise InputError(
            f"ImageNet weights for '{encoder}' could not be fetched ({reason}); give a file with "
            "--model.weights FILE, or train from scratch with --model.weights none."
        ) from error
    return state
