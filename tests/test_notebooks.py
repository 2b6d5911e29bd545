"""The notebooks run from top to bottom, in one process of their own: one of them registers a method."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
RUNNER = """
import json, os, sys, torch
torch.set_num_threads(1)
for path in sys.argv[1:]:
    os.makedirs(os.path.basename(path)); os.chdir(os.path.basename(path))
    names = {"__name__": "__main__"}
    for cell in json.load(open(path, encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path, "exec"), names)
    os.chdir("..")
"""


def test_the_notebooks_run(tmp_path: Path) -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare_methods", "extend_your_model", "write_a_method"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
    command = [sys.executable, "-c", RUNNER, *map(str, NOTEBOOKS)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mib+ucd" in done.stdout
    assert "ring" in done.stdout
    for written in ("compare_methods.ipynb/report.html", "extend_your_model.ipynb/overlay.png"):
        assert (tmp_path / written).is_file()
    last = json.loads((tmp_path / "write_a_method.ipynb" / "runs" / "apart" / "result.json").read_text())
    assert last["method"] == "mib+apart"


def test_they_are_kept_without_outputs() -> None:
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
