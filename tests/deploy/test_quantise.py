import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command_line import run
from conftest import coloured_patches
from incseg.deploy import quantise
from incseg.deploy.model import Model
from incseg.deploy.onnx_file import OnnxFile
from samples import write_classes

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
onnx = pytest.importorskip("onnx", reason="the extra incseg[export] is not installed")


pytestmark = pytest.mark.xdist_group("onnx")


@pytest.fixture
def exact(tiny_onnx: tuple[Path, float]) -> Path:
    """The file in float32."""
    return tiny_onnx[0]


@pytest.fixture(autouse=True)
def _exported_once(exact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantise, "export", lambda model, out, kind: shutil.copyfile(exact, out))  # noqa: ARG005


@pytest.fixture(scope="module")
def model_file(tiny_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.save(tmp_path_factory.mktemp("model") / "model.safetensors")


def test_the_loss_of_miou_is_said_where_there_are_masks(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_classes(tmp_path / "data", ["disc", "square", "triangle", "cross"], images=4)
    out = tmp_path / "model.onnx"
    assert run("export", model_file, "--out", out, "--quantise", folder, "--json", "--quiet") == 0
    shown, said = capsys.readouterr()
    assert "mIoU" in said
    found = json.loads(shown)["result"]
    assert found["images"] == 4
    assert abs(found["miou"] - found["miou_before"]) < 0.1
    kinds = {node.op_type for node in onnx.load(out).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= kinds
    weights = [entry for entry in onnx.load(out).graph.initializer if entry.data_type == onnx.TensorProto.INT8]
    assert len(weights) > 5
    assert OnnxFile.open(out).classes == ("background", "disc", "square", "triangle", "cross"), "the metadata stays"


def test_without_masks_the_classes_are_compared(
    model_file: Path, tiny_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    patches = coloured_patches(2, 3, 64, 96).permute(0, 2, 3, 1).numpy()
    for index, pixels in enumerate(patches):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index}.png")
    out = tmp_path / "model.onnx"
    assert run("export", model_file, "--out", out, "--quantise", tmp_path / "photos") == 0
    assert "% of the pixels of 2 images get the same class." in capsys.readouterr().out
    ids = [each.predict_all(list(patches))[0].ids for each in (tiny_model, OnnxFile.open(out))]
    assert np.mean(ids[0] == ids[1]) > 0.9, "8 bits change little"
    for words, message in [
        (("--out", tmp_path / "model.pt2", "--quantise", tmp_path / "photos"), "does not end in .onnx"),
        (("--out", out, "--quantise", tmp_path / "nowhere"), "is not a folder"),
    ]:
        assert run("export", model_file, *words) == 2
        assert message in capsys.readouterr().err


def test_the_recipe_for_openvino(
    exact: Path, tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "import openvino" in each)
    shutil.copyfile(exact, tmp_path / "model.onnx")
    pixels = coloured_patches(1, 3, 60, 80)
    monkeypatch.chdir(tmp_path)
    names = {"pixels": pixels.numpy()}
    exec(compile(block, "docs/deploy.md", "exec"), names)
    (expected,) = tiny_model.predict_all(list(pixels.permute(0, 2, 3, 1).numpy()))
    assert np.mean(names["found"][0] == expected.ids) > 0.99
