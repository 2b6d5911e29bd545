"""Where models compute, and where what must be exact is kept."""

import torch
from torch import Tensor

from incseg.errors import InputError


def choose_device(name: str) -> torch.device:
    """Where to compute; "auto" takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"this machine cannot compute on '{name}' ({reason}): use auto, cpu, cuda or mps.") from None


def exact_device(device: torch.device) -> torch.device:
    """Where there is float64 beside a device: on itself, except that Apple's GPUs have none."""
    return torch.device("cpu") if device.type == "mps" else device


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, or beside it if the device has no such type."""
    return tensor.to(exact_device(device) if tensor.dtype == torch.float64 else device)
