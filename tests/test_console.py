import io

import pytest
from rich.progress import TaskProgressColumn, TimeRemainingColumn

from incseg.console import WIDEST, Console, ProgressBar, Table, progress_of, quietly, unbroken


def test_a_log_gets_a_few_lines() -> None:
    log = io.StringIO()
    with progress_of("reading [masks]", Console(file=log)) as advance:
        for done in range(1, 1001):
            advance(done, 1000)
    lines = log.getvalue().splitlines()
    assert lines[0] == "reading [masks]: 0 %"
    assert lines[-1] == "reading [masks]: 100 %"
    assert len(lines) == 11


def test_how_much_there_is_may_be_unknown() -> None:
    log = io.StringIO()
    with progress_of("fetching", Console(file=log)) as advance:
        advance(5, 0)
        advance(9, 0)
    assert log.getvalue().splitlines() == ["fetching: 0 %"]


def test_a_terminal_gets_a_bar() -> None:
    screen = io.StringIO()
    with progress_of("reading", Console(file=screen, force_terminal=True, width=80)) as advance:
        advance(0, 0)
        advance(4, 4)
    assert "reading" in screen.getvalue()
    assert "100%" in screen.getvalue()


NAMES = ["cross [/x]", "disc [old]", "[red]ring[/red]", ":cat:", "back\\slash [", "{task}"]


def test_names_in_tables_are_shown_as_they_are() -> None:
    for name in NAMES:
        screen = io.StringIO()
        Console(file=screen, width=200).show(Table(f"t {name}", [f"h {name}"], [[f"c {name}"]], note=f"n {name}"))
        for place in "thcn":
            assert f"{place} {name}" in screen.getvalue()


def test_names_in_lines_are_shown_as_they_are() -> None:
    for name in NAMES:
        screen = io.StringIO()
        Console(file=screen, force_terminal=True, color_system=None).say(f"learnt {name}, 12 of 'them'")
        assert screen.getvalue() == f"learnt {name}, 12 of 'them'\n"


def test_names_in_progress_are_shown_as_they_are() -> None:
    for name in NAMES:
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, color_system=None, width=80)
        with progress_of(f"reading {name}", console) as advance:
            advance(4, 4)
        assert f"reading {name} " in screen.getvalue()


def test_lines_are_never_broken() -> None:
    screen = io.StringIO()
    Console(file=screen, width=20).say("a path " * 20)
    assert screen.getvalue().count("\n") == 1


HEADERS = ["method", "1-4", "5-6", "7-8", "5-8", "all", "all+bg", "harmonic", "forgetting", "avg. steps"]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize(("name", "value"), [("mib+ucd", "71.5"), ("joint (offline)", "71.5 ± 0.3")])
def test_words_and_numbers_of_a_wide_table_are_not_broken(width: int, name: str, value: str) -> None:
    screen = io.StringIO()
    Console(file=screen, width=width).show(Table("mIoU", HEADERS, [[name, *[value] * 9]], "1-4: disc; 5-6: ring"))
    shown = screen.getvalue()
    for word in " ".join(HEADERS).split():
        assert word in shown
    assert shown.count(value) == 9
    assert shown.count(name) == shown.count("method")  # every part of a table says of what its rows are
    assert max(map(len, shown.splitlines())) <= width


def test_a_long_name_is_broken_between_words_before_columns_are_moved_below() -> None:
    screen = io.StringIO()
    name = "mib+ucd (optim.incremental_learning_rate 0.001, mib.trust_labels True)"
    Console(file=screen, width=80).show(Table("mIoU", HEADERS[:8], [[name, *["71.5"] * 7]]))
    shown = screen.getvalue()
    assert shown.count("method") == 1
    assert all(word in shown for word in name.split())


def test_prose_is_broken_between_words_only() -> None:
    screen = io.StringIO()
    rows = [["--optim.incremental-learning-rate", "unsophisticated", "a sentence that goes on"]]
    Console(file=screen, width=60).show(Table("settings", ["setting", "default", "what it is for"], rows, prose=True))
    assert all(word in screen.getvalue() for row in rows for cell in row for word in cell.split())


@pytest.mark.parametrize("width", [24, 60, 200])
def test_a_bar_is_one_line_however_narrow_the_window(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    bar = ProgressBar(console, TaskProgressColumn(), TimeRemainingColumn(table_column=unbroken()))
    bar.add_task("gathering statistics from 12345 images of a folder", total=9)
    (line,) = console.render_lines(bar.get_renderable(), pad=False)
    assert sum(segment.cell_length for segment in line) <= min(width, WIDEST)


def test_quietly_only_results_are_said() -> None:
    log = io.StringIO()
    with quietly():
        console = Console(file=log)
        console.mention("epoch 1 of 3")
        with progress_of("reading", console) as advance:
            advance(1, 1)
        console.say("written: out")
    console.mention("afterwards")
    assert log.getvalue().splitlines() == ["written: out", "afterwards"]


def test_a_note_is_not_squeezed_below_a_narrow_table() -> None:
    screen = io.StringIO()
    note = "A sentence that is much wider than the table above it."
    Console(file=screen, width=80).show(Table("t", ["a"], [["1"]], note))
    assert note in screen.getvalue().splitlines()
