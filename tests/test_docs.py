"""Every command of docs/reproduce.md is executed; what would train is only planned."""

import re
import shlex
from pathlib import Path

import pytest

from incseg import cli
from incseg.paper import read_tables

TEXT = (Path(__file__).parents[1] / "docs" / "reproduce.md").read_text()
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
