from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from incseg.errors import InputError
from incseg.models import Architecture, Segmenter
from incseg.models.storage import load_model, save_model


def test_a_model_comes_back_with_its_heads_and_class_names(tmp_path: Path) -> None:
    architecture = Architecture(
        encoder="test_resnet", decoder="deeplabv3plus", decoder_options={"decoder_channels": 16}
    )
    segmenter = Segmenter(architecture, [3]).eval()
    segmenter.softmax_head.grow(2)
    classes = ("background", "cat", "dog", "<cow>", "hén")
    save_model(segmenter, classes, tmp_path / "step-1" / "model.safetensors")
    loaded, names = load_model(tmp_path / "step-1" / "model.safetensors")
    images = torch.randint(0, 256, (1, 3, 40, 40), dtype=torch.uint8)
    assert names == classes
    assert loaded.classifier.head_sizes == [3, 2]
    assert not loaded.training
    assert torch.equal(segmenter.segment(images), loaded.segment(images))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model file"):
        load_model(tmp_path / "model.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="not a readable safetensors"):
        load_model(tmp_path / "broken.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="not written by incseg"):
        load_model(tmp_path / "other.safetensors")
