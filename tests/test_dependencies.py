"""The pinned versions: every dependency has one, and none is there that nothing needs."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_INSTALLED = {"generate", "docs"}  # extras that the suite does without: several GB, and what builds the site


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def direct() -> set[str]:
    extras = [lines for name, lines in PROJECT["optional-dependencies"].items() if name not in NOT_INSTALLED]
    names = {plain(Requirement(line).name) for lines in [PROJECT["dependencies"], *extras] for line in lines}
    return names - {"incseg"}


def pins() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {plain(line.split("==")[0]) for line in lines if line and not line.startswith("#")}


def test_every_dependency_has_a_pin() -> None:
    assert direct() - pins() == set()


def test_every_pin_is_needed() -> None:
    needed, waiting = set[str](), direct()
    while waiting:
        name = waiting.pop()
        needed.add(name)
        try:
            found = {plain(Requirement(line).name) for line in requires(name) or ()}
        except PackageNotFoundError:
            continue  # for another system or another extra
        waiting |= found - needed
    assert pins() - needed == set()
