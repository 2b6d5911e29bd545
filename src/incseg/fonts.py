"""Which font can draw a name in a picture: names come in all alphabets, and a plot's usual font has not all of them."""

import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib as mpl
from matplotlib.font_manager import FontProperties, findSystemFonts
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text

USUAL = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"  # always there; more alphabets than Pillow's own
UNUSUAL = ("bold", "black", "light", "italic", "oblique", "serif", "mono", "condensed", "emoji")


@dataclass(frozen=True)
class Drawable:
    """A text, and the file of a font that has all its characters."""

    text: str
    font: Path


def drawable(text: str, otherwise: str) -> Drawable:
    """A text with the font that draws it; where no installed font can, ``otherwise``, which the usual font can."""
    font = font_for(text)
    return Drawable(otherwise, USUAL) if font is None else Drawable(text, font)


def write_in(place: Text, text: str, otherwise: str) -> None:
    """Put a name, as it is, into a text of a plot: in a font that can draw it, and not as a formula."""
    shown = drawable(text, otherwise)
    place.set(text=shown.text, parse_math=False, font=FontProperties(fname=shown.font, size=place.get_fontsize()))


@cache
def font_for(text: str) -> Path | None:
    """The first font with all characters of a text: the usual one, else any that is installed; None if none has."""
    needed = {ord(character) for character in text if unicodedata.category(character)[0] not in "CZ"}
    if _has(USUAL, needed):
        return USUAL
    return next((font for font in _installed() if _has(font, needed)), None)


@cache
def _installed() -> tuple[Path, ...]:
    """All installed fonts, plain ones first."""

    def is_unusual(font: Path) -> bool:
        return any(word in font.name.lower() for word in UNUSUAL)

    return tuple(sorted(map(Path, findSystemFonts()), key=lambda font: (is_unusual(font), font)))


def _has(font: Path, characters: set[int]) -> bool:
    try:
        face = FT2Font(str(font))
    except (RuntimeError, OSError):  # a damaged file, or a kind of font that FreeType does not know
        return False
    return all(face.get_char_index(character) for character in characters)
