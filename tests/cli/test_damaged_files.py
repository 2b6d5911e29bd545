"""Damaged files given to commands: one sentence and exit code 1 or 2, never a traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import incseg.deploy.serve as serving
from command_line import run
from incseg.deploy import export as exporting
from incseg.errors import InputError
from incseg.run_folder import RunFolder
from samples import write_classes


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def foreign(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(100)))


def strange(path: Path) -> None:
    """Text that can be read, without a checksum, in which everything has another type."""
    steps = [1, None]
    path.write_text(
        json.dumps({"protocol": 3, "method": [], "seed": "x", "settings": 7, "classes": {}, "steps": steps})
    )


DAMAGE = (flip, cut, foreign, strange)
FILES = ("model", "memory", "result", "scores", "config")
# Which files each command reads.
NEEDED = {
    "predict": {"model"},
    "eval": {"model", "config", "scores", "memory"},
    "report": {"result", "config"},
    "export": {"model"},
    "extend": {"model", "memory"},
    "merge": {"model", "memory"},
    "forget": {"model", "memory"},
    "statistics": {"model"},
    "serve": {"model"},
}


def words(command: str, folder: Path, out: Path, new: Path) -> list[str | Path]:
    image = next((new / "images").iterdir())
    quick = ["--data.workers", "0", "--engine.accelerator", "cpu", "--engine.pictures", "0"]
    commands: dict[str, list[str | Path]] = {
        "predict": ["predict", folder, image, "--out", out, "--device", "cpu"],
        "eval": ["eval", folder],
        "report": ["report", folder, "--out", out / "report.html"],
        "export": ["export", folder, "--out", out / "model.pt2"],
        "extend": ["extend", folder, "--data", new, "--out", out, *quick],
        "merge": ["merge", folder, folder, "--out", out],
        "forget": ["forget", folder, "disc", "--out", out],
        "statistics": ["statistics", folder, "--data", new, "--workers", "0", "--device", "cpu"],
        "serve": ["serve", folder, "--device", "cpu"],
    }
    return commands[command]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_every_command_says_so_in_a_sentence(
    name: str,
    damage: Callable[[Path], None],
    solved_base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_page(*_: object) -> None:
        raise InputError("the page would open now.")

    monkeypatch.setattr(serving, "build_app", no_page)
    monkeypatch.setattr(exporting, "export", lambda *_: 0.0)
    new = write_classes(tmp_path / "new", ["ring"], images=2)
    folder = RunFolder(shutil.copytree(solved_base, tmp_path / "run"))
    path = getattr(folder, name)
    damage(path(0) if callable(path) else path)
    for command in [command for command, needed in NEEDED.items() if name in needed]:
        code = run(*words(command, folder.path, tmp_path / f"out-{command}", new), "--quiet")
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("incseg: ")]
        unread = (command, name) == ("report", "config") and damage is not foreign  # it is shown as it is
        assert code in ((0,) if unread else (1, 2)), (command, said)
        assert len(said) == (code != 0), (command, said)
