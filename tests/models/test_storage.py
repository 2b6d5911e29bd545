import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import save_file

from incseg.config import HeadKind, ModelConfig
from incseg.errors import InputError
from incseg.models import Architecture, Segmenter
from incseg.models.storage import TrainedModel, describe_model, load_model, save_model
from incseg.models.tensor_file import read_tensors, write_tensors


@pytest.mark.parametrize("head", get_args(HeadKind))
def test_a_model_comes_back_with_its_heads_and_class_names(head: HeadKind, tmp_path: Path) -> None:
    architecture = Architecture(
        encoder="test_resnet", decoder="deeplabv3plus", decoder_options={"decoder_channels": 16}, head=head
    )
    segmenter = Segmenter(architecture, [3]).eval()
    segmenter.trained_head.grow(2)
    classes = ("background", "cat", "dog", "<cow>", "hén")
    save_model(segmenter, classes, tmp_path / "step-1" / "model.safetensors")
    loaded, names = load_model(tmp_path / "step-1" / "model.safetensors")
    images = torch.randint(0, 256, (1, 3, 40, 40), dtype=torch.uint8)
    assert names == classes
    assert loaded.classifier.head_sizes == [3, 2]
    assert loaded.classifier.kind == head
    assert f"{head} head" in repr(TrainedModel(loaded, names))
    assert not loaded.training
    assert torch.equal(segmenter.segment(images), loaded.segment(images))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model file"):
        load_model(tmp_path / "model.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="not a readable safetensors"):
        load_model(tmp_path / "broken.safetensors")
    (tmp_path / "model.onnx").write_bytes(b"no safetensors at all")
    with pytest.raises(InputError, match="give the model it was exported from"):
        load_model(tmp_path / "model.onnx")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="not written by incseg"):
        load_model(tmp_path / "other.safetensors")


def test_a_file_of_an_earlier_version_loads(tmp_path: Path) -> None:
    """Its architecture has every key and no more; the history came later."""
    architecture = {"encoder": "test_resnet", "decoder": "deeplabv3plus", "output_stride": 16,
                    "decoder_options": {"decoder_channels": 16}, "library": "smp", "classifier_kernel": 3,
                    "align_corners": True}  # fmt: skip
    segmenter = Segmenter(Architecture.model_validate(architecture), [2, 1])
    assert segmenter.architecture.model_dump(mode="json", exclude_none=True) == architecture | {"head": "softmax"}
    description = {"architecture": architecture, "head_sizes": [2, 1], "classes": ["background", "cat", "dog"]}
    state = {name: tensor.contiguous() for name, tensor in segmenter.state_dict().items()}
    save_file(state, tmp_path / "old.safetensors", metadata={"incseg": json.dumps(description)})
    model = TrainedModel.open(tmp_path / "old.safetensors", device="cpu")
    assert (model.classes, model.history) == (("background", "cat", "dog"), [])
    assert model.segmenter.architecture == segmenter.architecture
    assert model.segmenter.classifier.head_sizes == [2, 1]


def test_the_settings_of_a_run_choose_the_architecture() -> None:
    settings = ModelConfig(encoder="resnet18", output_stride=8, decoder_options={"decoder_channels": 8}, weights="none")
    architecture = Architecture.of(settings, crop_size=512)
    assert architecture == Architecture(encoder="resnet18", output_stride=8, decoder_options={"decoder_channels": 8})
    assert "weights" not in architecture.model_dump()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"classes": []}, "head_sizes must be numbers"),
        ({"classes": None}, "head_sizes must be numbers"),
        ({"classes": ["background", 5, "dog"]}, "head_sizes must be numbers"),
        ({"head_sizes": [3, -1, 1]}, "do not fit 3 classes"),
        ({"head_sizes": [10**12]}, "do not fit 3 classes"),
        ({"head_sizes": [True, 2]}, "head_sizes must be numbers"),
        ({"history": ["x"]}, "history entries of steps"),
        ({"architecture": {}, "history": 5}, "history entries of steps"),
        ({"architecture": {"encoder": 7}}, "does not say how to build its model"),
        ({"architecture": {"size": 10**9}}, "does not say how to build its model"),
        ({"architecture": None}, "does not say how to build its model"),
        (
            {"architecture": {"closed_form": {"channels": [8, 8], "strides": [16, 16], "width": 8, "original": 1}}},
            "its head looks at the encoder as it was before training, which it does not keep",
        ),
        ({"head_sizes": [3]}, "does not hold the model it describes: classifier"),
        ({"options": {"decoder_channels": 10**4}}, "does not hold the model it describes"),
        ({"options": {"decoder_channels": 10**9}}, "describes a model that cannot be built"),
        ({"options": {"decoder_channels": -1}}, "describes a model that cannot be built"),
        ({"missing": "classes"}, "it lacks 'classes'"),
        ({"missing": "architecture"}, "it lacks 'architecture'"),
    ],
)
def test_a_description_that_cannot_be_is_one_sentence(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    small = Architecture(encoder="test_resnet", decoder="deeplabv3plus", decoder_options={"decoder_channels": 16})
    path = tmp_path / "model.safetensors"
    save_model(Segmenter(small, [2, 1]), ("background", "cat", "dog"), path)
    description, tensors = read_tensors(path)
    assert description is not None
    description |= {name: value for name, value in change.items() if name in description}
    if "options" in change:
        description["architecture"]["decoder_options"] = change["options"]
    description.pop(change.get("missing", ""), None)
    write_tensors(path, tensors, description)
    with pytest.raises(InputError, match=reason) as refused:
        load_model(path)
    assert str(path) in str(refused.value)
    if "model it describes" not in reason and "cannot be built" not in reason:
        with pytest.raises(InputError, match=reason):
            describe_model(path)
