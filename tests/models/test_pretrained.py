from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from incseg.errors import InputError
from incseg.models import Architecture, Segmenter
from incseg.models.pretrained import load_encoder, original_encoder
from incseg.models.storage import load_model, save_model


@pytest.mark.parametrize("encoder", ["resnet18", "tu-resnet18"])
def test_resnet_weights_from_a_file(encoder: str, shared_weights: Callable[[str], Path]) -> None:
    path = shared_weights("resnet18.imagenet-like.fp16.safetensors")
    segmenter = Segmenter(Architecture(encoder=encoder), [2])
    load_encoder(segmenter, str(path))
    state = load_file(path)
    loaded = {name.removeprefix("model."): value for name, value in segmenter.encoder.state_dict().items()}
    for name in ("conv1.weight", "layer4.1.bn2.running_var"):
        torch.testing.assert_close(loaded[name], state[name].float())


def test_timm_weights_with_a_classification_head(shared_weights: Callable[[str], Path]) -> None:
    path = shared_weights("tf_efficientnet_lite0.imagenet.fp16.safetensors")
    segmenter = Segmenter(Architecture(encoder="tf_efficientnet_lite0", decoder="fpn"), [2])
    before = segmenter.encoder.state_dict()["model.conv_stem.weight"].clone()
    load_encoder(segmenter, str(path))
    after = segmenter.encoder.state_dict()["model.conv_stem.weight"]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, load_file(path)["conv_stem.weight"].float())


def test_a_file_saved_by_torch_is_read_too(tmp_path: Path) -> None:
    source, target = (Segmenter(Architecture(encoder="test_resnet"), [2]) for _ in range(2))
    torch.save({"state_dict": source.encoder.state_dict()}, tmp_path / "weights.pth")
    load_encoder(target, str(tmp_path / "weights.pth"))
    for name, value in source.encoder.state_dict().items():
        assert torch.equal(value, target.encoder.state_dict()[name])


def test_none_leaves_the_encoder_as_it_is() -> None:
    segmenter = Segmenter(Architecture(encoder="test_resnet"), [2])
    before = {name: value.clone() for name, value in segmenter.state_dict().items()}
    load_encoder(segmenter, "none")
    assert all(torch.equal(value, before[name]) for name, value in segmenter.state_dict().items())


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    other = Segmenter(Architecture(encoder="resnet18"), [2]).encoder.state_dict()
    save_file({name: value.contiguous() for name, value in other.items()}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="do not fit the encoder 'test_resnet'"):
        load_encoder(Segmenter(Architecture(encoder="test_resnet"), [2]), str(tmp_path / "other.safetensors"))


@pytest.mark.parametrize("name", ["broken.safetensors", "broken.pth"])
def test_broken_and_missing_files_are_named(tmp_path: Path, name: str) -> None:
    segmenter = Segmenter(Architecture(encoder="test_resnet"), [2])
    with pytest.raises(InputError, match=f"no weights file .*{name}"):
        load_encoder(segmenter, str(tmp_path / name))
    (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(InputError, match=f"{name} cannot be read"):
        load_encoder(segmenter, str(tmp_path / name))


@pytest.mark.parametrize(
    ("encoder", "client"), [("resnet18", "smp.encoders.get_encoder"), ("test_resnet", "timm.create_model")]
)
def test_the_hub_is_asked_by_name_and_its_absence_explained(
    encoder: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = (Segmenter(Architecture(encoder=encoder), [2]) for _ in range(2))
    asked: list[tuple[str, object]] = []

    def answer(name: str, **options: object) -> torch.nn.Module:
        asked.append((name, options.get("weights", options.get("pretrained"))))
        return getattr(source.encoder, "model", source.encoder) if encoder != "resnet18" else source.encoder

    monkeypatch.setattr(f"incseg.models.pretrained.{client}", answer)
    load_encoder(target, "imagenet")
    assert asked == [(encoder, "imagenet" if encoder == "resnet18" else True)]
    for name, value in source.encoder.state_dict().items():
        assert torch.equal(value, target.encoder.state_dict()[name])

    def unreachable(name: str, **options: object) -> torch.nn.Module:
        raise OSError(f"no route to {name} {options}")

    monkeypatch.setattr(f"incseg.models.pretrained.{client}", unreachable)
    with pytest.raises(InputError, match=r"could not be fetched \(no route .*--model\.weights FILE"):
        load_encoder(target, "imagenet")


def test_the_encoder_as_it_was_before_training_is_kept_exactly_in_half_the_space(tmp_path: Path) -> None:
    segmenter = Segmenter(Architecture(encoder="test_resnet", activation="leaky"), [2])
    state = segmenter.encoder.state_dict()
    next(value for name, value in state.items() if name.endswith("running_var")).fill_(1e6)  # too large for float16
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "weights.safetensors")
    with torch.no_grad():
        for parameter in segmenter.encoder.parameters():
            parameter.add_(1)  # it was trained since
    segmenter.keep_original(original_encoder(segmenter, str(tmp_path / "weights.safetensors")))
    assert segmenter.original is not None
    for name, value in load_file(tmp_path / "weights.safetensors").items():
        torch.testing.assert_close(segmenter.original.state_dict()[name], value, rtol=1e-3, atol=1e-6)
    save_model(segmenter, ["background", "cat"], tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    short = [name for name, value in stored.items() if value.dtype == torch.float16]
    assert short
    assert all(name.startswith("original.") for name in short)
    again = load_model(tmp_path / "model.safetensors")[0].state_dict()
    assert all(torch.equal(again[name], value) for name, value in segmenter.state_dict().items())


def test_a_training_from_scratch_has_no_encoder_worth_keeping() -> None:
    assert original_encoder(Segmenter(Architecture(encoder="test_resnet"), [2]), "none") is None
