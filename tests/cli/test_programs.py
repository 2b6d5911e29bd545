"""What a program that calls a command reads: one document on stdout, JSON lines on stderr, the exit code."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from incseg.cli import COMMANDS, Group
from incseg.console import as_json
from incseg.deploy.model import Model
from incseg.methods import method_names
from incseg.results import Run
from samples import write_classes

PAGE = (Path(__file__).parents[2] / "docs" / "programs.md").read_text(encoding="utf-8")


def called(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, dict[str, Any], list[str]]:
    capsys.readouterr()
    code = run(*words)
    out, err = capsys.readouterr()
    assert out.count("\n") == 1, "one line, and nothing else"
    return code, json.loads(out), err.splitlines()


def test_a_table_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, lines = called(capsys, "list", "methods", "--json")
    assert (code, document["exit_code"], document["error"], document["command"]) == (0, 0, "", "list")
    (table,) = document["tables"]
    assert [row["name"] for row in table["rows"]] == method_names()
    assert any("mib" in line for line in lines), "people read it on stderr"


def test_a_refusal_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, lines = called(capsys, "predict", "nowhere", "x.jpg", "--json", "--progress", "json")
    assert code == document["exit_code"] == 2
    assert "there is no model nowhere" in document["error"]
    assert [json.loads(line) for line in lines] == [{"event": "message", "text": f"incseg: {document['error']}"}]


def test_what_was_found_before_a_failure_is_in_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_classes(tmp_path / "data", ["disc"], images=3)
    (folder / "masks" / "001.png").write_bytes(b"nonsense")
    words = ("data", "check", "folder", "--data-root", folder, "--out", tmp_path / "sheet.png")
    code, document, _ = called(capsys, *words, "--json", "--quiet")
    assert code == 2
    assert document["result"]["classes"] == ["background", "disc"]
    (problem,) = document["result"]["problems"]
    assert "001.png" in problem


def test_progress_and_results_of_a_training(
    tiny_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_model.save(tmp_path / "model.safetensors")
    new = write_classes(tmp_path / "new", ["ring"], images=10)
    code, document, lines = called(
        capsys, "extend", path, "--data", new, "--out", tmp_path / "out", "--optim.epochs", "2", "--data.workers", "0",
        "--optim.batch-size", "4", "--data.crop-size", "32", "--engine.accelerator", "cpu", "--json", "--progress=json",
    )  # fmt: skip
    assert code == 0
    assert document["result"]["run"] == Run.read(tmp_path / "out").result
    events = [json.loads(line) for line in lines if line.startswith("{")]
    training = [event for event in events if event["event"] == "training"]
    assert [event["done"] for event in training] == [0, 1, 2, 3, 4]
    assert {event["of"] for event in training} == {4}
    assert training[-1]["losses"].keys() == {"segmentation", "distillation", "contrast"}
    assert any(event["event"] == "progress" and event["done"] == event["of"] for event in events)


def test_a_wrong_value_and_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "methods", "--progress", "bar") == 2
    assert "--progress cannot be 'bar'" in capsys.readouterr().err
    assert as_json({"a": float("nan"), "b": (Path("x"), 1.5, None, True)}) == '{"a": null, "b": ["x", 1.5, null, true]}'


def test_the_page_names_every_command_and_its_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    for line in re.findall(r"^incseg (.*)$", PAGE, flags=re.MULTILINE):
        assert called(capsys, *shlex.split(line))[0] == 0
    names = {name for name, command in COMMANDS.items() if not isinstance(command, Group)} | {
        f"{group} {name}"
        for group, command in COMMANDS.items()
        if isinstance(command, Group)
        for name in command.commands
    }
    named = set(re.findall(r"`([a-z ]+)`", PAGE))
    assert names - {"serve", "bench"} <= named, "serve reports nothing"
