from io import StringIO
from pathlib import Path

from incseg.console import Console
from incseg.study.latest_lines import TAIL, LatestLines, last_line


def test_the_last_line_that_is_not_blank(tmp_path: Path) -> None:
    log = tmp_path / "ft.log"
    assert last_line(log) == ""
    log.write_bytes("é".encode() * TAIL + "\nstep 1\n  step 2 · ETA 0:01  \n\n".encode())
    assert last_line(log) == "step 2 · ETA 0:01"
    log.write_text("\n \n")
    assert last_line(log) == ""


def test_lines_are_drawn_in_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "ft.log").write_text("ft at step 1\n")
    (tmp_path / "mib.log").write_text("mib at step 0\n")
    for is_terminal in (True, False):
        console = Console(file=StringIO(), force_terminal=is_terminal, width=60)
        with LatestLines(console) as latest:
            latest.show([tmp_path / "ft.log", tmp_path / "mib.log"])
        drawn = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("ft at step 1" in drawn, "mib at step 0" in drawn) == (is_terminal, is_terminal)
