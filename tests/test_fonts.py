import warnings
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from incseg import fonts
from incseg.fonts import drawable, write_in

FONT_FOR, INSTALLED = fonts.font_for.__wrapped__, fonts._installed.__wrapped__  # without what they remember


@pytest.fixture(autouse=True)
def no_answers_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fonts of this machine are not asked: every test says which there are."""
    monkeypatch.setattr(fonts, "font_for", FONT_FOR)
    monkeypatch.setattr(fonts, "_installed", lambda: ())


def test_a_name_in_an_alphabet_of_the_usual_font_is_drawn_in_it() -> None:
    for name in ("dog", "hén", "собака", "σκύλος", "with\u200bzero width", ""):
        assert drawable(name, "class 1") == fonts.Drawable(name, fonts.USUAL)


def test_another_installed_font_helps_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken, dejavu = tmp_path / "broken.ttf", fonts.USUAL
    broken.write_text("no font")
    monkeypatch.setattr(fonts, "USUAL", dejavu.with_name("cmr10.ttf"))  # it has no Cyrillic
    assert drawable("собака", "class 1").text == "class 1"
    monkeypatch.setattr(fonts, "_installed", lambda: (broken, dejavu))
    assert drawable("собака", "class 1") == fonts.Drawable("собака", dejavu)


def test_plain_fonts_are_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["/f/ABold.ttf", "/f/ASerif.otf", "/f/NotoSansCJK-Regular.ttc"]
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: files)
    assert INSTALLED()[0].name == "NotoSansCJK-Regular.ttc"


def test_a_plot_with_names_of_any_kind_draws_without_a_warning() -> None:
    figure = Figure()
    axes = figure.subplots()
    place = axes.set_title("", fontsize=9)
    for name, shown in (("犬", "class 3"), ("a $x$ b $", "a $x$ b $"), ("_hidden", "_hidden")):
        write_in(place, name, "class 3")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure.canvas.draw()
        assert place.get_text() == shown
        assert place.get_fontsize() == 9
