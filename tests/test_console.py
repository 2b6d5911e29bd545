import io

from incseg.console import Console, progress_of


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
