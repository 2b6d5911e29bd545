"""Commands of docs/reproduce.md are executed, trainings only planned; docs/api.md and docs/scale.md are tried too."""

import re
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from incseg import cli
from incseg.cli.arguments import read_arguments
from incseg.cli.train import train as train_command
from incseg.config import RunConfig, flat_settings, load_recipe, published_presets, recipe_names
from incseg.engine.assembly import train
from incseg.errors import Stopped
from incseg.methods import describe_methods
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


COMPARISONS = re.findall(r"^incseg (compare .*)$", (DOCS / "compare.md").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("line", COMPARISONS)
def test_every_comparison_can_be_planned(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)
    assert cli.main(words if "--dry-run" in words else [*words, "--dry-run"]) == 0
    assert "incseg train" in capsys.readouterr().out


def test_every_table_is_named() -> None:
    named = {shlex.split(line)[2] for line in LINES if "reproduce" in line}
    assert named == set(read_tables())


DIFFERENCES = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in TEXT.split("| recipes | method | setting |")[1].splitlines()[2:]
    if line.startswith("|")
]


def value_in(recipe: str, method: str, setting: str, preset: str = "") -> str:
    """A setting as a recipe has it, or the method's default."""
    config = flat_settings(load_recipe(recipe, {"method": method, **({"preset": preset} if preset else {})}))
    owner, _, name = setting.partition(".")
    defaults = {entry.name: entry.settings for entry in describe_methods()}.get(owner, {})
    value = config.get(setting, config.get(f"settings.{setting}", defaults.get(name)))
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("row", DIFFERENCES, ids=" ".join)
def test_the_differences_from_paper_and_scripts_are_those_of_the_recipes(row: list[str]) -> None:
    recipes, method, setting, paper, scripts, ours, why = row
    found = [name for name in recipe_names() if f"{name}/".startswith(f"{recipes}/") and name.count("/") == 2]
    assert found
    for name in found:
        if "offline" not in name:
            assert value_in(name, method, setting) == (f"{float(ours):g}" if ours[0].isdigit() else ours)
    assert ours in paper or paper == "–"
    for preset in re.findall(r"--preset ([\w-]+)", why):
        known = {*(f"{float(number):g}" for number in re.findall(r"\d[\d.]*\d|\d+", f"{scripts} {why}")), scripts}
        assert value_in(found[0], method, setting, preset) in known


def test_the_page_has_every_preset() -> None:
    named = set(re.findall(r"--preset ([a-z][\w-]+)", TEXT))
    assert named == {name for name, _, _ in published_presets()}


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


SCALE = (DOCS / "scale.md").read_text()


def trained_as(words: str) -> RunConfig:
    """The configuration of what follows ``incseg train``."""
    recipe, *rest = shlex.split(words)
    given = read_arguments(train_command, [recipe, *rest], "incseg train")
    return load_recipe(recipe, given["settings"])


def test_the_settings_of_the_page_on_scale_exist() -> None:
    commands = re.findall(r"^incseg train (.*)$", SCALE, flags=re.MULTILINE)
    assert commands
    for words in commands:
        assert trained_as(words).engine.devices > 1


def test_launchers_on_the_page_on_scale_start_as_many_processes_as_the_settings_say() -> None:
    (options, words), *others = re.findall(r"^torchrun (.*) -m incseg train (.*)$", SCALE, flags=re.MULTILINE)
    assert not others
    launched = get_args_parser().parse_args([*shlex.split(options), "-m", "incseg"])
    engine = trained_as(words).engine
    assert (launched.nnodes, launched.nproc_per_node) == (str(engine.nodes), str(engine.devices))
    (script,) = re.findall(r"```bash\n#!/bin/bash\n(.*?)```", SCALE, flags=re.DOTALL)
    asked = dict(re.findall(r"--([\w-]+)=(\w+)", "\n".join(re.findall(r"^#SBATCH (.*)$", script, flags=re.MULTILINE))))
    engine = trained_as(re.findall(r"^srun incseg train (.*)$", script, flags=re.MULTILINE)[0]).engine
    assert (asked["nodes"], asked["ntasks-per-node"]) == (str(engine.nodes), str(engine.devices))
    assert asked["gpus-per-node"] == asked["ntasks-per-node"]
    assert hasattr(signal, f"SIG{asked['signal']}")
    assert f"[ $? -eq {Stopped.EXIT_CODE} ] && scontrol requeue" in script
