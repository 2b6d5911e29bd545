"""Every command and example of docs/deploy.md is executed, in its order."""

import os
import re
import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image

import incseg
from incseg import cli
from incseg.deploy import quantise
from incseg.deploy import serve as serving
from samples import write_classes

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
CHEAP = ["--optim.epochs", "1", "--optim.batch-size", "4", "--data.crop-size", "64", "--data.workers", "0",
         "--engine.accelerator", "cpu"]  # fmt: skip
SMALL = ["--model.encoder", "test_resnet", "--model.decoder", "unet", "--model.weights", "none",
         "--model.decoder-options", "{encoder_depth: 3, decoder_channels: [16, 16, 8]}"]  # fmt: skip
QUICK = {"optim": {"epochs": 1, "batch_size": 4}, "data": {"crop_size": 64, "workers": 0},
         "engine": {"accelerator": "cpu"}}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a reader of the page has at hand."""
    write_classes(tmp_path / "mydata", ["disc", "square"], images=10)
    write_classes(tmp_path / "newdata", ["ring", "flower"], images=10)
    write_classes(tmp_path / "moredata", ["moon"], images=10)
    write_classes(tmp_path / "pets", ["disc", "square"], images=10)
    (tmp_path / "pets" / "classes.txt").write_text("background\ndog\ncat\n")
    write_classes(tmp_path / "labelled", ["square", "ring", "moon"], images=4)
    for name in ("photos/a.jpg", "more/b/c.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.effect_noise((80, 60), 90).convert("RGB").save(tmp_path / name)
    torch.save(smp.Unet("resnet18", encoder_weights=None, classes=3).state_dict(), tmp_path / "unet.pth")
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def serve_and_close(*arguments: Any) -> None:
    serving_app = ORIGINAL(*arguments, block=False)
    serving_app.close()


ORIGINAL = serving.serve


def test_the_page_can_be_followed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra incseg[export] is not installed")
    pytest.importorskip("gradio", reason="the extra incseg[serve] is not installed")
    monkeypatch.setattr(serving, "serve", serve_and_close)
    monkeypatch.setattr(incseg, "extend", partial(incseg.extend, settings=QUICK))
    # What --quantise begins with is the file that the page has just exported: once takes seconds enough.
    monkeypatch.setattr(quantise, "export", lambda model, out, kind: shutil.copyfile("model.onnx", out))  # noqa: ARG005
    names: dict[str, Any] = {}
    executed = []
    for language, block in re.findall(r"```(bash|python)\n(.*?)```", PAGE, flags=re.DOTALL):
        if "import openvino" in block:  # tests/deploy/test_quantise.py runs it where it is installed
            continue
        if language == "python":
            exec(compile(block, "docs/deploy.md", "exec"), names)
            continue
        for line in block.splitlines():
            command, *arguments = shlex.split(line)
            if command == "pip":
                continue
            assert command == "incseg"
            executed.append(arguments[0])
            arguments += {"train": [*CHEAP, *SMALL], "extend": CHEAP}.get(arguments[0], [])
            assert cli.main(arguments) == 0, line
    assert executed == [
        "train",
        "extend",
        "extend",
        "memory",
        "extend",
        "extend",
        "merge",
        "forget",
        "forget",
        "statistics",
        "forget",
        "predict",
        "eval",
        "export",
        "export",
        "export",
        "serve",
        "serve",
        "import",
        "statistics",
        "extend",
    ]
    assert names["names"] == ["background", "disc", "square", "ring", "flower", "moon"]
    assert names["logits"].shape == (1, 6, 60, 80)
    assert Image.open("classes.png").size == (80, 60)
    assert torch.allclose(torch.tensor(names["logits"]), names["same_logits"], atol=1e-3)
    written = {os.path.relpath(path, home) for path in (home / "predictions").rglob("*.json")}
    assert written == {"predictions/a.json", "predictions/b/c.json"}
    assert set(incseg.load("models/both").classes) == set(incseg.load("runs/biggest").classes)
    assert incseg.load("models/without-moon").classes == incseg.load("runs/bigger").classes
    assert incseg.load("models/without-ring-and-flower").classes == ("background", "disc", "square", "moon")
    assert incseg.load("models/learnt.safetensors").statistics() is not None
    assert incseg.load("runs/unet-bigger").history[-1]["method"] == "analytic"
    assert incseg.load("runs/unet-bigger").classes == ("background", "cat", "dog", "ring", "flower")
