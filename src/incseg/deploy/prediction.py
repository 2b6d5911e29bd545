"""The prediction for one image: a class id per pixel, the area of each class, and an overlay to look at."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from incseg.colours import DISTINCT, Colours, palette
from incseg.files import replacing
from incseg.fonts import Drawable, drawable
from incseg.images import Pixels, index_image
from incseg.protocol import BACKGROUND

STRIP = 256  # rows coloured at a time, so that large images need no large float arrays
READABLE = 360  # pixels: smaller images are magnified, so that they and their legend can be read
JPEG_LIMIT = 60_000  # pixels per side, with room for a legend; JPEG ends at 65 500
SHOWN = 4  # classes that a prediction names when it is printed
FILL = 0.5  # opacity of a class's colour; its outline is opaque


@dataclass(frozen=True, repr=False)
class Prediction:
    """A segmented image.

    Attributes:
        image: (H, W, 3) uint8 RGB, upright.
        ids: (H, W) uint8 channels, 0 background.
        classes: names by channel.
        colours: the palette in which they are drawn.
        confidence: (H, W) float16, the probability of the class in ``ids``; None unless it was asked for.
        probabilities: (C, H, W) float16, of every class; None unless they were asked for.
    """

    image: Pixels
    ids: NDArray[np.uint8]
    classes: tuple[str, ...]
    colours: Colours = DISTINCT
    confidence: NDArray[np.float16] | None = None
    probabilities: NDArray[np.float16] | None = None

    def __repr__(self) -> str:
        height, width = self.ids.shape
        found = sorted(((share, name) for name, share in self.areas.items() if share), reverse=True)
        areas = [f"{name} {percentage(share)}" for share, name in found[:SHOWN]]
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        return f"Prediction({width}×{height}: {', '.join(areas + more)})"

    @property
    def areas(self) -> dict[str, float]:
        """The share of the image that each class covers, by name, background included."""
        counts = np.bincount(self.ids.ravel(), minlength=len(self.classes))
        return {name: float(count) / self.ids.size for name, count in zip(self.classes, counts, strict=True)}

    def to_json(self) -> dict[str, Any]:
        """Size and areas, as written to the JSON file."""
        height, width = self.ids.shape
        classes = {
            name: {"id": channel, "pixels": round(share * self.ids.size), "share": round(share, 6)}
            for channel, (name, share) in enumerate(self.areas.items())
        }
        return {"width": width, "height": height, "classes": classes}

    def index(self) -> Image.Image:
        """The ids as an index image with a palette."""
        return index_image(self.ids, self.colours)

    def overlay(self, shown: Collection[str] | None = None) -> Image.Image:
        """The image with its classes in colour, or only those named in ``shown``; background is not coloured."""
        visible = np.array([name in shown if shown is not None else True for name in self.classes])
        visible[BACKGROUND] = False
        ids = np.where(visible[self.ids], self.ids, BACKGROUND).astype(np.uint8)
        outline, colours, pixels = _outline(ids), palette(self.colours).astype(np.float32), self.image.copy()
        for start in range(0, len(ids), STRIP):
            rows = slice(start, start + STRIP)
            opacity = np.where(outline[rows], 1, FILL) * (ids[rows] != BACKGROUND)
            pixels[rows] = (pixels[rows] + opacity[..., None] * (colours[ids[rows]] - pixels[rows])).round()
        return Image.fromarray(pixels)

    def picture(self) -> Image.Image:
        """The overlay above a legend of the classes in it; small images are magnified."""
        overlay = magnified(self.overlay())
        overlay.thumbnail((JPEG_LIMIT, JPEG_LIMIT))
        width = max(overlay.width, READABLE)
        shares = enumerate(self.areas.values())
        strip = _legend([self._entry(channel, share) for channel, share in shares if channel and share > 0], width)
        whole = Image.new("RGB", (width, overlay.height + strip.height), "white")
        whole.paste(overlay)
        whole.paste(strip, (0, overlay.height))
        return whole

    def _entry(self, channel: int, share: float) -> "LegendEntry":
        """A class in the legend: its colour, name and share; a name that no font can draw is replaced by its id."""
        colour, area = tuple(palette(self.colours)[channel].tolist()), percentage(share)
        return LegendEntry(colour, drawable(f"{self.classes[channel]} {area}", f"class {channel} {area}"))

    def save(self, stem: Path) -> list[Path]:
        """Write ``STEM.overlay.jpg``, ``STEM.classes.png`` and ``STEM.json``; returns the paths.

        With ``confidence`` there is also ``STEM.confidence.png``, grey: white is certain, black a probability of 0.
        """
        paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("overlay.jpg", "classes.png", "json")]
        with replacing(paths[0]) as temporary:
            self.picture().save(temporary, format="JPEG", quality=90)
        with replacing(paths[1]) as temporary:
            self.index().save(temporary, format="PNG")
        with replacing(paths[2]) as temporary:
            temporary.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if self.confidence is not None:
            paths.append(stem.with_name(f"{stem.name}.confidence.png"))
            with replacing(paths[-1]) as temporary:
                grey = (255 * self.confidence).round().astype(np.uint8)
                Image.fromarray(grey).save(temporary, format="PNG")
        return paths


def magnified(image: Image.Image) -> Image.Image:
    """A small image enlarged by a whole factor, so that it can be seen; a large one as it is."""
    factor = -(-READABLE // max(image.size))
    size = (factor * image.width, factor * image.height)
    return image.resize(size, Image.Resampling.NEAREST) if factor > 1 else image


def percentage(share: float) -> str:
    """A share as text, with < 0.1 % for what is small but not zero.

    >>> percentage(0.1234), percentage(0.0001), percentage(0)
    ('12.3 %', '< 0.1 %', '0.0 %')
    """
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def _outline(ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pixels whose right or lower neighbour is of another class."""
    edge = np.zeros(ids.shape, bool)
    edge[:-1] |= ids[:-1] != ids[1:]
    edge[:, :-1] |= ids[:, :-1] != ids[:, 1:]
    return edge


@dataclass(frozen=True)
class LegendEntry:
    """A class in a picture: its colour, None for a remark without one, and what is written beside it."""

    colour: tuple[int, ...] | None
    label: Drawable

    def font(self, size: int) -> ImageFont.FreeTypeFont:
        """The font of that size that can draw the label."""
        return _font(self.label.font, size)


def _legend(entries: Sequence[LegendEntry], width: int) -> Image.Image:
    """A white strip of that width with the colour, name and share of each class, on as many lines as needed."""
    size = max(10, round(width / 60))
    line, gap = round(1.8 * size), size
    x, y, places = gap, gap // 2, []
    for entry in entries or [LegendEntry(None, drawable("only background", ""))]:
        needed = round(1.5 * size + entry.font(size).getlength(entry.label.text))
        if x > gap and x + needed + gap > width:
            x, y = gap, y + line
        places.append((entry, x, y))
        x += needed + 2 * gap
    strip = Image.new("RGB", (width, y + line + gap // 2), "white")
    draw = ImageDraw.Draw(strip)
    for entry, left, top in places:
        if entry.colour is not None:
            draw.rectangle((left, top + size // 3, left + size, top + size // 3 + size), fill=entry.colour)
        middle = top + size // 3 + size // 2
        start = (left + math.ceil(1.5 * size), middle)
        draw.text(start, entry.label.text, font=entry.font(size), fill="black", anchor="lm")
    return strip


@cache
def _font(file: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)
