import io
import re

import pytest

from incseg.console import WIDEST, Console, quietly
from incseg.engine.display import LINES, LiveDisplay, Status, display_for


def learn(epochs: int, per_epoch: int = 7, *, terminal: bool, start: int = 0, width: int = 100) -> str:
    """What a person sees of a step."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None, legacy_windows=False)
    display = display_for(console)
    status = Status("mib+ucd", last_step=2, step=1, iterations=epochs * per_epoch, per_epoch=per_epoch, done=start)
    status.scored = "mIoU 71.5 after step 0"
    display.begin(status)
    for done in range(start + 1, status.iterations + 1):
        status.losses = {"segmentation": 1 / done, "contrast": -0.25}
        status.done = done
        display.update(status)
    display.end()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_say_step_epoch_losses_miou_and_the_time_left() -> None:
    lines = learn(epochs=2, terminal=False).splitlines()
    assert lines[0] == "mib+ucd · step 1/2 · epoch 1/2 · iteration 0 of 14"
    assert len(lines) == 3
    expected = (
        r"mib\+ucd · step 1/2 · epoch 1/2 · segmentation 0\.143  contrast -0\.250 · mIoU 71\.5 after step 0 · ETA "
    )
    assert re.fullmatch(expected + r"\d:\d\d:\d\d", lines[1])
    assert lines[2].endswith("ETA 0:00:00")


@pytest.mark.parametrize("epochs", [1, 10, 11, 30, 1000])
def test_plain_lines_are_few_and_the_last_epoch_is_among_them(epochs: int) -> None:
    lines = learn(epochs, terminal=False).splitlines()
    assert len(lines) <= 2 + LINES
    assert f"epoch {epochs}/{epochs}" in lines[-1]
    assert "\x1b" not in "".join(lines)


def test_a_step_taken_up_again_says_where() -> None:
    assert "iteration 7 of 14" in learn(epochs=2, terminal=False, start=7).splitlines()[0]


def test_a_terminal_shows_a_bar_with_the_same_facts() -> None:
    shown = learn(epochs=2, terminal=True)
    for text in (
        "step 1/2 · epoch 2/2",
        "14/14",
        "ETA",
        "segmentation 0.071",
        "contrast -0.250",
        "mIoU 71.5 after step 0",
    ):
        assert text in shown
    assert "━" in shown


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("title", ["[bold]mib", "cross [/x]", "disc [old]", ":cat:"])
def test_names_in_brackets_are_not_markup(title: str, terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=120)
    display = display_for(console)
    status = Status(title, last_step=0, iterations=2, losses={title: 1.0})
    display.begin(status)
    status.done = 2
    display.update(status)
    display.end()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert f"{title} · step 0/0" in shown
    assert f"{title} 1.000" in shown


def test_ending_twice_or_before_the_beginning_is_fine() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    display = LiveDisplay(console)
    display.end()
    display.begin(Status("ft", last_step=0, iterations=1))
    display.end()
    display.end()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert shown.count("\x1b[?25h") == shown.count("\x1b[?25l") == 1  # the cursor was hidden once and is back


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_window_of_any_width_gets_two_lines(width: int) -> None:
    """Lines that were broken would stay behind when they are drawn again, also after the window has become narrower."""
    shown = learn(epochs=2, terminal=True, width=width)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.split("\x1b[2K")[-1])
    lines = [line.rstrip() for line in last.splitlines() if line.strip()]
    assert len(lines) == 2
    assert max(map(len, lines)) <= min(width, WIDEST)


def test_quietly_nothing_is_shown() -> None:
    with quietly():
        assert learn(epochs=2, terminal=False) == learn(epochs=2, terminal=True) == ""
