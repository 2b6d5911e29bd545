"""What the documents name exists: source files, modules, classes, functions, settings, and the targets of links."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from incseg.config import as_text, setting_names
from incseg.methods import describe_methods
from incseg.registry import GENERATORS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "incseg"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"])
VARIABLES = {
    "view": "View",
    "part": "Part",
    "self": "Part",
    "context": "Context",
    "step": "Step",
}  # as the pages call an instance
OTHER_FILES = (
    *(".json", ".jsonl", ".xml", ".yaml", ".txt", ".md", ".pt", ".html", ".csv", ".png", ".jpg", ".npy"),
    ".safetensors",
)
OTHER_PACKAGES = ("torch", "triton", "huggingface_hub", "logger", "WandbLogger")  # `logger` is one of Lightning's


def spans(text: str) -> list[str]:
    """What stands between single backticks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@cache
def definitions(path: Path) -> dict[str, ast.AST]:
    """Names at the top of a file, imported ones too."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
    return found


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Every class of the source by its name."""
    found = (node for path in SOURCE.rglob("*.py") for node in definitions(path).values())
    return {node.name: node for node in found if isinstance(node, ast.ClassDef)}


def members(name: str) -> set[str]:
    """Methods and fields of a class and of those it inherits from."""
    node = classes()[name]
    own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    own |= {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in classes()]
    return own.union(*map(members, bases))


def is_in_module(path: list[str]) -> bool:
    """Whether ``["engine", "trainer", "Trainer", "run"]`` leads from module to module to a name, and on to a member."""
    place = SOURCE
    for index, piece in enumerate(path):
        if (place / piece).is_dir():
            place = place / piece
            continue
        file, rest = (place / f"{piece}.py", path[index + 1 :])
        if not file.is_file():
            file, rest = place / "__init__.py", path[index:]
        known = definitions(file)
        return not rest or (rest[0] in known and (len(rest) == 1 or rest[1] in members(rest[0])))
    return place != SOURCE


def exists(name: str) -> bool:
    """Whether a dotted name is one of ours, a setting, or of another package."""
    if name == GENERATORS:  # the group is no module
        return True
    first, *rest = path = name.removesuffix("()").removeprefix("incseg.").split(".")
    first = VARIABLES.get(first, first)
    if first in classes():
        return not rest or rest[0] in members(first)
    if (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").is_file():
        return is_in_module(path) or (first, *rest) in SETTINGS
    return (first, *rest) in SETTINGS or first in OTHER_PACKAGES


SETTINGS = {tuple(name.split(".")) for name in setting_names()}
SETTINGS |= {(entry.name, key) for entry in describe_methods() for key in entry.settings}


def wrong_names(text: str) -> list[str]:
    """File names and names of Python that a text has in backticks and that do not exist."""
    files = [span for span in spans(text) if re.fullmatch(r"[\w./-]+\.py", span)]
    names = [span for span in spans(text) if re.fullmatch(r"[A-Z][a-z]\w+|[A-Za-z_]\w*(\.\w+)+(\(\))?", span)]
    return [
        *(file for file in files if not any((place / file).is_file() for place in (ROOT, SOURCE))),
        *(name for name in names if not name.endswith((".py", *OTHER_FILES)) and not exists(name)),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_name_exists(page: Path) -> None:
    assert not wrong_names(page.read_text(encoding="utf-8"))


def test_names_that_do_not_exist_are_found() -> None:
    right = "`engine/trainer.py`, `Iterations.train_on`, `engine.trainer.Trainer.run`, `view.targets`, `data.crop_size`"
    wrong = ["engine/teacher.py", "Trainer.teach", "engine.trainer.Teacher", "view.aims", "data.crops", "Teacher"]
    assert not wrong_names(right)
    assert wrong_names(" ".join(f"`{name}`" for name in wrong)) == wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_exists(page: Path) -> None:
    known = {*setting_names(), *(f"{entry.name}.{name}" for entry in describe_methods() for name in entry.settings)}
    options = re.findall(r"--([a-z+-]+\.[a-z-]+)", page.read_text(encoding="utf-8"))
    assert {option.replace("-", "_") for option in options} - {"repel.weight"} <= {
        name.replace("-", "_") for name in known
    }


def test_every_method_is_described_and_the_settings_of_analytic_are_complete() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    entries = {entry.name: entry for entry in describe_methods() if entry.build.__module__.startswith("incseg.")}
    assert set(entries) <= {name for span in spans(text) for name in (span, *span.split("+"), *span.split()[1:2])}
    written = dict(re.findall(r"^\| `--analytic\.([a-z-]+)` \| (\S+)", text, flags=re.MULTILINE))
    declared = entries["analytic"].settings
    assert set(written) == set(declared)
    for name, value in declared.items():
        if value is not None:
            assert written[name] == as_text(value).removesuffix(".0"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", text):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor[1:] in {anchor_of(heading) for heading in headings}, target + anchor


def anchor_of(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
