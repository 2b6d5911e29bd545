"""The architecture, checked: imports go one way, and nothing hides in a drawer without a name."""

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from incseg.methods import method_names

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "incseg"

# Who may import whom, besides themselves. Leaves are open to all.
LEAVES = {
    "errors", "checksums", "files", "seeding", "protocol", "batch", "metrics", "run_folder", "result_shape", "results",
    "colours", "fonts", "hub", "images", "console", "registry", "config", "sizes", "upsampling", "__init__",
    "model_header", "system_signals", "without_torch",
}  # fmt: skip
ALLOWED = {
    **{leaf: set[str]() for leaf in LEAVES},
    "__init__": {"deploy", "engine"},  # inside its functions: the public names, loaded when they are used
    "datasets": set(),
    "losses": set(),
    "models": set(),
    "loading": {"datasets"},
    "curriculum": {"datasets", "loading"},
    "methods": {"losses", "models", "datasets", "loading", "curriculum"},
    "engine": {"methods", "curriculum", "loading", "models", "datasets"},
    "deploy": {"models", "datasets", "curriculum", "loading"},
    "study": {"engine", "methods", "curriculum"},
    "paper": {"study"},
    "report": {"paper", "datasets"},
    "bench": {"losses", "models", "engine", "curriculum", "loading", "datasets"},
    "cli": {"engine", "deploy", "report", "study", "paper", "bench", "methods", "curriculum", "models", "datasets"},
    "__main__": {"cli"},
}


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_by(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "incseg" else {module}
    return {package_of(name) for name in found if name.split(".")[0] == "incseg"}


def test_imports_go_one_way() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        inside = path.relative_to(SOURCE)
        package = inside.parts[0] if len(inside.parts) > 1 else inside.stem
        for target in imported_by(path) - {package}:
            if target not in ALLOWED[package] and target not in LEAVES:
                wrong.append(f"{inside} imports incseg.{target}")
    assert not wrong


def test_the_table_goes_down_the_layers_of_the_design() -> None:
    layers = [
        ["__main__", "cli", "__init__"],
        ["engine", "deploy", "report", "study", "paper", "bench"],
        ["methods", "curriculum", "loading"],
        ["models", "losses", "datasets"],
        sorted(LEAVES - {"__init__"}),
    ]
    depth = {package: index for index, layer in enumerate(layers) for package in layer}
    assert depth.keys() == ALLOWED.keys()
    upwards = [f"{one} -> {other}" for one in ALLOWED for other in ALLOWED[one] if depth[other] < depth[one]]
    assert not upwards


def test_every_import_in_the_documents_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [
        (page.name, module, name.strip())
        for page in pages
        for module, names in re.findall(r"^from (incseg[\w.]*) import ([\w, ]+)$", page.read_text(), flags=re.MULTILINE)
        for name in names.split(",")
    ]
    assert len(found) > 5
    missing = [line for line in found if not hasattr(importlib.import_module(line[1]), line[2])]
    assert not missing


def test_the_rule_itself_allows_no_cycle() -> None:
    order: list[str] = []
    waiting = dict(ALLOWED)
    while waiting:
        free = [name for name, needs in waiting.items() if needs <= set(order)]
        assert free, f"these import each other: {sorted(waiting)}"
        order += free
        for name in free:
            del waiting[name]


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "misc"])
def test_no_drawer_without_a_name(name: str) -> None:
    assert not list(SOURCE.rglob(f"{name}.py"))


def test_no_two_files_have_one_name() -> None:
    counted = Counter(path.name for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    assert not [name for name, count in counted.items() if count > 1]


def test_the_engine_names_no_method() -> None:
    known = set(method_names())
    for path in (SOURCE / "engine").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
                assert not set(node.value.split("+")) <= known, f"{path.name} names the method {node.value}"


def test_data_commands_do_not_wait_for_lightning() -> None:
    """It takes seconds to import, and nothing that ``incseg data`` imports, directly or not, needs it."""
    reached, waiting = set[str](), {"cli/data.py"}
    while waiting:
        path = waiting.pop()
        reached.add(path)
        tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
        nodes = ast.walk(tree) if path == "cli/data.py" else tree.body
        modules = [f"{n.module}.{alias.name}" for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names]
        modules += [alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names]
        assert not [module for module in modules if module.split(".")[0] == "lightning"], path
        for module in modules:
            parts = module.split(".")[1:] if module.startswith("incseg.") else []
            inside = ["/".join(parts[: end + 1]) for end in range(len(parts))]
            files = [f"{place}{ending}" for place in inside for ending in (".py", "/__init__.py")]
            waiting |= {file for file in files if (SOURCE / file).is_file()} - reached
    assert {"curriculum/protocol_curriculum.py", "datasets/check.py", "report/dataset_check.py"} <= reached
