import pytest
import torch

from incseg.errors import InputError
from incseg.models.devices import choose_device, exact_device, placed

MPS = torch.device("mps")


def test_what_needs_float64_stays_beside_a_device_that_has_none() -> None:
    assert exact_device(MPS) == torch.device("cpu")
    assert exact_device(torch.device("cuda:1")) == torch.device("cuda:1")
    sums = torch.ones(2, dtype=torch.float64)
    assert placed(sums, MPS) is sums
    assert placed(sums, torch.device("meta")).device.type == "meta"
    assert placed(sums.float(), torch.device("meta")).device.type == "meta"


def test_a_device_that_is_not_there_is_refused() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="this machine cannot compute on 'nowhere'"):
        choose_device("nowhere")
