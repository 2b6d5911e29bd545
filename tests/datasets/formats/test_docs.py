"""The page on data: its commands run, and it names every format and every extra."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import run
from exports import write_coco
from incseg.datasets.formats import format_names
from incseg.run_folder import RunFolder

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL) for line in block.splitlines()]


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_coco(tmp_path / "export")
    monkeypatch.chdir(tmp_path)
    assert len(LINES) == 2
    for line in LINES:
        assert run(*shlex.split(line, comments=True)[1:]) == 0
    assert (tmp_path / "mydata" / "classes.txt").read_text() == "background\nbox\ncat\n"


def test_every_format_and_extra_is_named() -> None:
    assert all(f"| `{name}` |" in TEXT for name in format_names())
    extras = re.findall(r"incseg\[([a-z]+)\]", TEXT)
    assert extras == ["coco", "parquet"]
    assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)


def test_a_model_is_extended_by_an_export(
    solved_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bigger"
    options = ["--data.unlabelled", "ignore", "--data.workers", "0"]
    assert run("extend", solved_base, "--data", write_coco(tmp_path / "export"), "--out", out, *options) == 0
    assert "reading data as COCO JSON: annotations/instances_train.json" in capsys.readouterr().out
    assert RunFolder(out).finished_steps
    assert "unlabelled: ignore" in RunFolder(out).config.read_text()
