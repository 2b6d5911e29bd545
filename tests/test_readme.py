"""Every command and every example of the README is executed."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from incseg import cli
from processes import PROCESSES, start
from samples import fewer_shapes, write_classes, write_folder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CHEAP = ["--optim.epochs", "1", "--optim.batch-size", "32", "--data.crop-size", "64", "--data.workers", "0",
         "--engine.accelerator", "cpu"]  # fmt: skip
SHALLOW = ["--model.decoder", "unet", "--model.decoder-options", "{encoder_depth: 3, decoder_channels: [16, 16, 8]}"]
# What a machine without network, GPU and the real dataset puts in the place of an argument.
STAND_INS = {"--engine.devices": "1", "--model.weights": "none"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line]


def test_it_opens_with_the_two_commands() -> None:
    assert [line.split("#")[0].split() for line in blocks("bash")[0].splitlines()] == [
        ["make", "demo"],
        ["make", "test"],
    ]
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo:" in makefile
    assert "\ntest:" in makefile


@PROCESSES
@pytest.mark.usefixtures("few_shapes")
def test_every_incseg_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    write_folder(tmp_path / "mydata", train=12, val=4)
    write_classes(tmp_path / "newdata", ["ring", "flower"], images=12)
    write_classes(tmp_path / "moredata", ["frame", "moon"], images=12)
    shutil.copytree(tmp_path / "mydata" / "images", tmp_path / "photos")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for words in commands():
        if words[0] == "incseg" and words[1:3] != ["data", "prepare"]:  # which would download gigabytes
            arguments = [str(request.getfixturevalue("voc_tiny")) if w == "VOC2012" else w for w in words[1:]]
            assert run(cheaper(arguments)) == 0, shlex.join(words)
    for file in ("report.html", "extension.html", "model.onnx", "predictions/000.overlay.jpg", "voc-check.png"):
        assert (tmp_path / "runs" / file).exists(), file


def run(arguments: list[str]) -> int:
    """The exit code; a plugin runs in a process of its own, so that no other test sees what it registers."""
    if "--plugin" not in arguments:
        return cli.main(arguments)
    ended = start(Path.cwd(), *arguments, before=fewer_shapes).wait()
    assert ended.codes == [0], ended.errors
    return 0


def cheaper(arguments: list[str]) -> list[str]:
    """The same command for a machine with little time, and without GPU and network."""
    if arguments[0] == "extend":
        return arguments + CHEAP
    if arguments[:2] == ["bench", "step"]:
        return [*arguments, "--data.crop-size", "32", "--optim.batch-size", "2"]
    if arguments[0] != "train":
        return arguments
    for name, value in STAND_INS.items():
        if name in arguments:
            arguments[arguments.index(name) + 1] = value
    own = [] if "shapes" in arguments[1] else ["--model.weights", "none", "--model.encoder", "test_resnet"]
    shallow = SHALLOW if arguments[1] == "folder/offline" else []  # it is exported later, which takes as many seconds
    return arguments + own + shallow + CHEAP


def test_the_python_example_runs() -> None:
    (block,) = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["loss"].isfinite()
    assert names["student"].grad is not None
    assert names["method"].name == "mib+ucd"
