import io

import pytest

from incseg.console import Console, Table, progress_of


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


@pytest.mark.parametrize("width", [80, 100])
def test_words_of_a_wide_table_are_not_broken(width: int) -> None:
    screen = io.StringIO()
    note = "1-4: disc, square, triangle, cross; 5-6: ring, moon; 7-8: flower, frame"
    Console(file=screen, width=width).show(Table("mIoU", HEADERS, [["mib+ucd", *["71.5"] * 9]], note))
    shown = screen.getvalue()
    for word in " ".join(HEADERS).split():
        assert word in shown
    assert note in shown
    assert max(map(len, shown.splitlines())) <= width


def test_a_note_is_not_squeezed_below_a_narrow_table() -> None:
    screen = io.StringIO()
    note = "A sentence that is much wider than the table above it."
    Console(file=screen, width=80).show(Table("t", ["a"], [["1"]], note))
    assert note in screen.getvalue().splitlines()
