import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import run
from conftest import CLASSES, coloured_patches, decided, solved
from incseg.deploy import export as exporting
from incseg.deploy.asked import Format
from incseg.deploy.export import export
from incseg.deploy.model import Model
from incseg.errors import IncompleteError
from incseg.models import Architecture, Segmenter

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra incseg[export] is not installed")
# With few layers: of these only the head is tested, and every layer costs an exporter time.
SHALLOW = Architecture(
    encoder="test_resnet", decoder="unet", decoder_options={"encoder_depth": 3, "decoder_channels": [16, 16, 8]}
)


@pytest.mark.xdist_group("onnx")
def test_onnx_of_any_size_and_batch_with_the_class_names_inside(
    tiny_model: Model, tiny_onnx: tuple[Path, float]
) -> None:
    file, difference = tiny_onnx
    assert 0 < difference < 1e-3
    session = onnxruntime.InferenceSession(file)
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["classes"]) == list(tiny_model.classes)
    assert json.loads(said["incseg"])["contract"]["images"].startswith("uint8 (batch, 3, height, width), RGB")
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    for shape in [(1, 3, 70, 45), (4, 3, 32, 320)]:  # none of them seen by the exporter
        images = torch.randint(0, 256, shape, dtype=torch.uint8)
        logits, classes = session.run(None, {"images": images.numpy()})
        expected = tiny_model.segmenter.segment(images)
        assert np.allclose(logits, expected, atol=1e-3)
        assert (classes == expected.argmax(dim=1).numpy()).mean() > 0.999


def test_pt2_of_any_size_and_batch(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", tiny_run, "--step", "0", "--format", "pt2", "--out", tmp_path / "x") == 0
    assert "its logits differ from PyTorch's by at most" in capsys.readouterr().out
    texts = {"classes.json": ""}
    with (tmp_path / "x").open("rb") as file:
        loaded = torch.export.load(file, extra_files=texts).module()
    assert json.loads(texts["classes.json"]) == ["background", "disc", "square"]
    for shape in [(1, 3, 70, 45), (4, 3, 32, 320), (1, 3, 64, 64)]:
        logits, classes = loaded(torch.randint(0, 256, shape, dtype=torch.uint8))
        assert logits.shape == (shape[0], 3, *shape[2:])
        assert classes.shape == (shape[0], *shape[2:])


@pytest.mark.parametrize(
    ("decoder", "kind", "stride"),
    [
        ("deeplabv3-mib", "onnx", 8),  # finer than the embedding
        ("deeplabv3plus", "pt2", 16),  # coarser than it
    ],
)
def test_a_head_solved_in_closed_form(decoder: str, kind: Format, stride: int, tmp_path: Path) -> None:
    """Embeddings at strides 16 and 4, averaged or interpolated to the head's own grid."""
    options = {"channels" if decoder == "deeplabv3-mib" else "decoder_channels": 16}
    # Some of the images are larger than the window over which deeplabv3-mib pools, some are not.
    architecture = Architecture(encoder="test_resnet", decoder=decoder, decoder_options=options, pooling_window=5)
    torch.manual_seed(0)
    segmenter = solved(Segmenter(architecture, [5]), stride)
    model = Model(segmenter, ("background", "disc", "square", "triangle", "cross"))
    assert export(model, tmp_path / f"model.{kind}") < 1e-3
    for shape in [(1, 3, 70, 45), (2, 3, 32, 96)]:
        images = coloured_patches(*shape)
        expected = segmenter.segment(images)
        if kind == "onnx":
            session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
            logits, classes = session.run(None, {"images": images.numpy()})
        else:
            with (tmp_path / "model.pt2").open("rb") as file:
                logits, classes = (output.detach().numpy() for output in torch.export.load(file).module()(images))
        assert np.allclose(logits, expected, atol=1e-3)
        assert (classes == expected.argmax(dim=1).numpy()).mean() > 0.999
        assert len(np.unique(classes)) > 1


def test_a_sigmoid_head(tmp_path: Path) -> None:
    """The score of background, which has no weights, is part of the file."""
    torch.manual_seed(0)
    segmenter = decided(Segmenter(SHALLOW.model_copy(update={"head": "sigmoid"}), [3, 2]))
    export(Model(segmenter, CLASSES), tmp_path / "model.onnx")
    images = coloured_patches(1, 3, 70, 45)
    logits, classes = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"images": images.numpy()})
    expected = segmenter.segment(images)
    assert logits.shape == (1, 5, 70, 45)
    assert not logits[:, 0].any()
    assert np.allclose(logits, expected, atol=1e-3)
    assert ((classes == 0) == (expected[:, 1:].amax(dim=1) <= 0).numpy()).mean() > 0.999
    assert 0 < (classes == 0).mean() < 1


def test_a_file_with_other_outputs_is_not_kept(
    tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = exporting.ExportedNetwork(Segmenter(tiny_model.segmenter.architecture, [3, 2]).eval())

    def write(_: object, path: Path, __: object) -> exporting.Runner:
        path.write_text("a file")
        return lambda images: tuple(output.numpy() for output in other(images))

    monkeypatch.setattr(exporting, "_write_pt2", write)
    with pytest.raises(IncompleteError, match="outputs of the pt2 file differ from PyTorch's: on images of 64×64"):
        export(tiny_model, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_the_model_stays_as_it_was_also_with_a_branched_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training that head gives one score more than in the file."""
    segmenter = Segmenter(SHALLOW.model_copy(update={"head": "branched"}), [3]).double().train()
    segmenter.decoder.eval()
    moved: list[object] = []

    def move(network: Segmenter) -> Segmenter:
        moved.append(network)
        return network.to("cpu")

    monkeypatch.setattr(Segmenter, "cpu", move)

    def state() -> tuple[dict[str, bool], dict[str, tuple[int, torch.device, torch.dtype]]]:
        tensors = segmenter.state_dict()
        modes = {name: module.training for name, module in segmenter.named_modules()}
        return modes, {name: (value.data_ptr(), value.device, value.dtype) for name, value in tensors.items()}

    before = state()
    assert export(Model(segmenter, ("background", "cat", "dog")), tmp_path / "model.pt2") < 1e-3
    assert state() == before
    assert all(network is not segmenter for network in moved)


def test_a_network_for_one_size_only_is_refused(tmp_path: Path) -> None:
    fixed = Architecture(encoder="tu-vit_tiny_patch16_224", decoder="dpt")
    segmenter = Segmenter(fixed, [2]).eval()
    with pytest.raises(IncompleteError, match="cannot be exported to pt2"):
        export(Model(segmenter, ("background", "cat")), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_bad_requests_get_one_sentence(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", tiny_run, "--out", tmp_path / "model.bin") == 2
    assert "end it in .onnx or .pt2" in capsys.readouterr().err
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnxscript" else name)
    assert run("export", tiny_run, "--out", tmp_path / "model.onnx") == 2
    assert "needs onnxscript: pip install 'incseg[export]'" in capsys.readouterr().err
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_full_disk_is_not_blamed_on_the_network(
    kind: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RuntimeError("the writer failed") from error

    monkeypatch.setattr(exporting, f"_write_{kind}", fails)
    assert run("export", tiny_run, "--out", tmp_path / f"x.{kind}") == 1
    said = capsys.readouterr().err
    assert f"x.{kind}: No space left on device; free some space there" in said.replace("\n", "")
    assert "cannot be exported" not in said
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []
