"""What others can add: the example package is installed and trained, the single file and CONTRIBUTING's code run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
QUICK = ["--model.encoder", "test_resnet", "--model.weights", "none", "--data.crop-size", "32", "--data.workers", "0",
         "--optim.epochs", "1", "--optim.batch-size", "8", "--engine.accelerator", "cpu"]  # fmt: skip


def run(*arguments: str | Path, site: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, so that no other test sees what is registered there."""
    paths = [ROOT / "src", *([site] if site else [])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "COLUMNS": "300",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed without network, beside a package that cannot be imported."""
    folder = tmp_path_factory.mktemp("examples")
    source = shutil.copytree(EXAMPLES / "incseg-extra", folder / "source")
    target = folder / "site"
    run(
        "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", target, source
    )
    (target / "broken_extra.py").write_text("import a_module_that_nobody_has\n")
    metadata = target / "broken_extra-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-extra\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[incseg.methods]\nshiny = broken_extra\n")
    return target


def test_an_installed_package_is_listed_and_a_broken_one_is_named(site: Path) -> None:
    done = run("-m", "incseg", "list", "methods", site=site)
    assert "--focal.gamma 2.0" in done.stdout
    assert "--ucd.temperature 0.07" in done.stdout
    (warning,) = [line for line in done.stderr.splitlines() if "broken" in line]
    assert "the plugin 'shiny' of broken-extra (broken_extra) cannot be loaded: ModuleNotFoundError" in warning


def test_a_method_and_a_dataset_of_an_installed_package_are_trained(site: Path, tmp_path: Path) -> None:
    run("-m", "incseg", "train", "blocks/2-1/overlapped", "--method", "focal+ucd", "--focal.gamma", "1",
        "--out", tmp_path / "run", *QUICK, site=site)  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(result["steps"]) == 2


def test_a_method_that_only_a_broken_package_has_says_so(site: Path, tmp_path: Path) -> None:
    done = run("-m", "incseg", "train", "shapes/4-2", "--method", "mib+shiny", "--out", tmp_path, site=site, code=2)
    assert "the method 'shiny' is not available: the plugin 'shiny' of broken-extra" in done.stderr + done.stdout


TRAIN_WITH_PLUGINS = """
import sys
from pathlib import Path

from incseg.config import load_recipe
from incseg.engine.assembly import train
from incseg.registry import load_plugin

*plugins, root, out = map(Path, sys.argv[1:])
for plugin in plugins:
    load_plugin(plugin)
settings = {
    "method": "mib+repel",
    "repel": {"weight": 0.5},
    "data": {"root": root, "crop_size": 64, "workers": 0},
    "model": {"encoder": "test_resnet", "weights": "none"},
    "optim": {"epochs": 1, "batch_size": 8},
    "engine": {"accelerator": "cpu", "log_every": 1},
}
train(load_recipe("animals/2-2/overlapped", settings), out)
"""


def test_the_method_and_the_dataset_of_contributing_train(tiny_folder: Path, tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    method, dataset = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert method == (EXAMPLES / "repel.py").read_text()
    (tmp_path / "animals.py").write_text(dataset)
    run("-c", TRAIN_WITH_PLUGINS, EXAMPLES / "repel.py", tmp_path / "animals.py", tiny_folder, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(line["repel"] > 0 for line in lines)
