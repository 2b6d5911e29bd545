"""What a stranger meets first: the wheel without its repository, the site, and the files that platforms read."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import incseg
from incseg.config import recipe_names

ROOT = Path(__file__).parents[1]


def run(*words: str | Path, cwd: Path, path: Path | None = None) -> str:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", **({"PYTHONPATH": str(path)} if path else {})}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_works_without_the_repository(tmp_path: Path) -> None:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist", cwd=ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:  # all that an installation of a pure wheel does
        archive.extractall(tmp_path / "site")
        entry_points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "incseg = incseg.cli:main" in archive.read(entry_points).decode()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = run("-c", "import incseg; print(incseg.__file__)", cwd=elsewhere, path=tmp_path / "site")
    assert Path(where.strip()).is_relative_to(tmp_path / "site")
    listed = run("-m", "incseg", "list", "recipes", "--json", cwd=elsewhere, path=tmp_path / "site")
    assert all(f'"{name}"' in listed for name in recipe_names())
    assert {"page.html", "model_card.md"} <= {path.name for path in (tmp_path / "site").rglob("*") if path.is_file()}


def pages_in(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return {page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in(entry)}


def test_every_page_is_on_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages_in(site["nav"]) == there | {"readme.md", "contributing.md", "changelog.md", "decisions/README.md"}
    listed = re.findall(r"\((0\d+-[\w-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    missing = [name for name in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install 'incseg[docs]'")
    run("-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path / "site", cwd=ROOT)
    assert "without the old data" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


def test_the_landing_page_answers_with_four_commands() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert text.startswith("# Add a class to your segmentation model, without the old data")
    (block,) = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    assert [line.split()[1] for line in block.splitlines()] == ["install", "import", "extend", "predict"]
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        assert (ROOT / "docs" / picture).is_file()


def test_the_files_that_platforms_read() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == project["version"] == incseg.__version__
    assert citation["license"] == project["license"]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert [name.split("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]
    versions = {line.split(" :: ")[-1] for line in project["classifiers"] if "Python :: 3" in line}
    assert set(matrix["python"]) == versions
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(path.read_text(encoding="utf-8"))
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
