"""Commands of docs/reproduce.md are executed, trainings only planned; docs/api.md and docs/scale.md are tried too."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from incseg import cli
from incseg.cli.arguments import read_arguments
from incseg.cli.train import train as train_command
from incseg.config import RunConfig, load_recipe
from incseg.engine.assembly import train
from incseg.paper import read_tables
from samples import write_classes

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "reproduce.md").read_text()
LINES = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_every_command_runs(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = shlex.split(line, comments=True)
    assert program == "incseg"
    if arguments[0] == "reproduce" and "--dry-run" not in arguments:
        arguments.append("--dry-run")
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out


def test_every_table_is_named() -> None:
    named = {shlex.split(line)[2] for line in LINES if "reproduce" in line}
    assert named == set(read_tables())


def test_the_examples_of_the_library_run(
    tiny_folder: Path, quick_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "mydata")
    shutil.copytree(tiny_folder / "images", tmp_path / "photos")
    write_classes(tmp_path / "newdata", ["ring"], images=10)
    train(quick_config("ft", task="offline"), tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "api.md").read_text(), flags=re.DOTALL):
        exec(compile(block, "docs/api.md", "exec"), names)
    assert names["bigger"].classes[-1] == "ring"
    assert (tmp_path / "overlay.png").is_file()
    assert (tmp_path / "runs" / "api" / "result.json").is_file()
    assert names["student"].grad is not None
    assert [type(part) for part in names["method"].resolve().parts] == [type(part) for part in names["same"].parts]
    assert names["intersection_over_union"](names["counts"]) == [0.5, 0.5]


def test_the_settings_of_the_page_on_scale_exist() -> None:
    commands = re.findall(r"^incseg train (\S+) (.*)$", (DOCS / "scale.md").read_text(), flags=re.MULTILINE)
    assert commands
    for recipe, rest in commands:
        given = read_arguments(train_command, [recipe, *shlex.split(rest)], "incseg train")
        config = load_recipe(recipe, given["settings"])
        assert config.engine.devices > 1
