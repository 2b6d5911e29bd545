"""Values on the command line that look right to Python, and are not what a person can have meant."""

import importlib.util
import struct
import zlib
from pathlib import Path

import pytest

from command_line import run
from samples import write_folder

QUICK = {
    "--method": "ft", "--data.crop-size": "64", "--data.workers": "0", "--model.encoder": "test_resnet",
    "--model.decoder": "deeplabv3plus", "--model.weights": "none", "--optim.epochs": "1", "--optim.batch-size": "4",
    "--engine.accelerator": "cpu",
}  # fmt: skip
PNG = b"\x89PNG\r\n\x1a\n"


def train(data: Path, out: Path, changes: dict[str, str], task: str = "2-2") -> int:
    options = {"--data-root": str(data), "--out": str(out), **QUICK, **changes}
    return run("train", f"folder/{task}/overlapped", *(word for pair in options.items() for word in pair))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--optim.epochs", "true", "optim.epochs cannot be 'true'"),
        ("--optim.epochs", "９", "digits 0 to 9"),
        ("--optim.epochs", "1_0", "digits 0 to 9"),
        ("--optim.epochs", "9" * 400, "less than or equal to 1000000"),
        ("--optim.learning-rate", ".inf", "optim.learning_rate cannot be '.inf'"),
        ("--optim.learning-rate", "nan", "optim.learning_rate cannot be 'nan'"),
        ("--optim.batch-size", "1000000", "far above the"),
        ("--seed", "９", "written with 0 to 9"),
        ("--seed", "9" * 5000, "it takes a whole number"),
        ("--data.class-order", "", "needs a value"),
        ("--data.class-order", ",", "one of them is empty"),
        ("--engine.max-time", "٣h", "digits 0 to 9"),
        ("--engine.max-time", "1e300", "less than or equal to 31536000"),
        ("--engine.timeout", "1e300", "less than or equal to 31536000"),
        ("--engine.loggers", "wandb,", "one of them is empty"),
        ("--method.x", "1", "'method' is neither a group of settings nor a method"),
        ("--settings.ucd", "{temperature: 1}", "'settings' is neither a group of settings nor a method"),
        ("--model.decoder-options", "{pretrained: true}", "has no option 'pretrained'"),
        ("--model.encoder", "hf-hub:someone/x", "is not an encoder"),
    ],
)
def test_a_value_that_nobody_can_mean(
    option: str, value: str, message: str, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tiny_folder, tmp_path / "run", {option: value}) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_digits_of_other_scripts_are_no_task(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tiny_folder, tmp_path / "run", {}, task="２-2") == 2
    assert "'２-2' is not a task" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_without_a_key_is_refused_before_the_run_has_begun(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_a_key(**_: object) -> None:  # the real thing stays in its process; tests/engine/test_loggers.py has it
        raise importlib.import_module("wandb").Error("No API key configured.")

    monkeypatch.setattr("incseg.engine.loggers.WandbLogger", without_a_key)
    assert train(tiny_folder, tmp_path / "run", {"--engine.loggers": "wandb"}) == 2
    assert "W&B cannot start" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "contrastive", "--sizes", "99999999999", "--device", "cpu"], "at most 1048576 anchor pixels"),
        (["bench", "contrastive", "--sizes", "-5", "--device", "cpu"], "too small to measure"),
        (["bench", "step", "--method", 'mib "'], "--method cannot be 'mib \"': a quotation mark is missing"),
        (["bench", "step", "--method", "mib --mib.nope 1"], "there is no setting 'mib.nope'"),
        (["bench", "step", "--method", "mib --engine.precision 32-true"], "give it outside the quotes"),
        (["bench", "step", "--method", "mib", "--ucd.weight", "1"], "neither a section of the settings nor a method"),
        (["train", "shapes/4-2", "--data-root", "."], "has no folder: leave --data-root out"),
        (["data", "split", "shapes/4-2", "--data-root", "."], "has no folder: leave --data-root out"),
        (["train", "x" * 3000], "is not a protocol"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "port"), [("203.0.113.7", "7999"), ("no.such.host.invalid", "80"), ("127.0.0.1", "-5")]
)
def test_an_address_of_another_machine_is_refused_at_once(
    host: str, port: str, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", tiny_run, "--host", host, "--port", port) == 2
    assert f"this machine cannot listen at '{host}', port {port}" in capsys.readouterr().err


def claim(path: Path, side: int, colours: int) -> None:
    """A PNG of a few bytes whose header claims a square of that side."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, colours, 0, 0, 0)
    path.write_bytes(PNG + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b""))


@pytest.mark.parametrize(("kind", "colours"), [("image", 2), ("mask", 0)])
def test_a_decompression_bomb_is_one_sentence(
    kind: str, colours: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data", train=4, val=2)
    claim(data / f"{kind}s" / "001.png", 60_000, colours)
    assert train(data, tmp_path / "run", {}) == 2
    assert run("data", "check", "folder", "--data-root", data, "--out", tmp_path / "sheet.png") == 2
    said = capsys.readouterr()
    for text in (said.err, said.out):
        assert f"the {kind} {data}/{kind}s/001.png is 60000×60000: at most 500 million pixels are read" in text.replace(
            "\n", " "
        )
