"""The notebooks run from top to bottom."""

import json
from pathlib import Path
from typing import Any

import pytest

from incseg.methods.parsing import METHODS
from incseg.results import Run

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a notebook's code in an empty folder; what it registers is gone afterwards."""
    assert METHODS.names()  # all are registered before one is added
    monkeypatch.setattr(METHODS, "_items", dict(METHODS._items))
    monkeypatch.setattr(METHODS, "_origins", dict(METHODS._origins))
    monkeypatch.chdir(tmp_path)

    def execute(name: str) -> None:
        path, names = NOTEBOOKS / name, {"__name__": "notebook"}
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                assert not cell["outputs"], "they are kept without outputs"
                exec(compile("".join(cell["source"]), str(path), "exec"), names)

    return execute


def test_extend_your_model(executed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    executed("extend_your_model.ipynb")
    assert "disc, square, triangle, cross, ring, flower" in capsys.readouterr().out
    assert Path("overlay.png").is_file()


def test_compare_methods(executed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    executed("compare_methods.ipynb")
    assert "mib+ucd" in capsys.readouterr().out
    assert "mib+ucd" in Path("report.html").read_text(encoding="utf-8")


def test_write_a_method(executed: Any) -> None:
    executed("write_a_method.ipynb")
    assert Run.read(Path("runs/apart")).method == "mib+apart"
    assert '"apart"' in Path("runs/apart/metrics.jsonl").read_text(encoding="utf-8")


def test_there_are_no_others() -> None:
    assert len(list(NOTEBOOKS.glob("*.ipynb"))) == 3
