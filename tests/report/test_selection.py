import io
from pathlib import Path

import pytest

from command_line import run
from incseg.console import Console
from incseg.errors import InputError
from incseg.report.selection import choose_runs
from sample_runs import write_run


def test_what_is_not_a_run_is_named_in_one_line_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_run(tmp_path / name, name, pictures=0) for name in ("ft", "mib")]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("method: ft")
    (tmp_path / "old.html").write_text("a page")
    given = sorted(tmp_path.iterdir())
    assert run("report", *given, "--out", tmp_path / "new.html") == 0
    shown = capsys.readouterr().out
    named = f"{tmp_path / 'begun'}, {tmp_path / 'old.html'}"
    assert shown.splitlines()[0] == f"left out, since not a run with a finished step: {named}."
    for paths in (given, [tmp_path / "*"]):
        assert choose_runs(paths, Console(file=io.StringIO())) == runs
    assert (tmp_path / "new.html").is_file()


def test_runs_one_level_down_are_pointed_at(tmp_path: Path) -> None:
    write_run(tmp_path / "voc" / "ft", pictures=0)
    with pytest.raises(InputError, match=r"voc holds no result.json: .* There are runs in it: .*voc/\*"):
        choose_runs([tmp_path / "voc"], Console())


def test_a_path_that_does_not_exist_is_a_mistake(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "ft", pictures=0)
    with pytest.raises(InputError, match=r"there is no .*typo"):
        choose_runs([folder, tmp_path / "typo"], Console())
