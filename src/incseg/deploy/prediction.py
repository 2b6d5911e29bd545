"""The prediction for one image: a class id per pixel, the area of each class, and an overlay to look at."""

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from incseg.files import replacing
from incseg.images import Pixels, index_image, palette
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
        confidence: (H, W) float16, the probability of the class in ``ids``; None unless it was asked for.
        probabilities: (C, H, W) float16, of every class; None unless they were asked for.
    """

    image: Pixels
    ids: NDArray[np.uint8]
    classes: tuple[str, ...]
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
        return index_image(self.ids)

    def overlay(self, shown: Collection[str] | None = None) -> Image.Image:
        """The image with its classes in colour, or only those named in ``shown``; background is not coloured."""
        visible = np.array([name in shown if shown is not None else True for name in self.classes])
        visible[BACKGROUND] = False
        ids = np.where(visible[self.ids], self.ids, BACKGROUND).astype(np.uint8)
        outline, colours, pixels = _outline(ids), palette().astype(np.float32), self.image.copy()
        for start in range(0, len(ids), STRIP):
            rows = slice(start, start + STRIP)
            opacity = np.where(outline[rows], 1, FILL) * (ids[rows] != BACKGROUND)
            pixels[rows] = (pixels[rows] + opacity[..., None] * (colours[ids[rows]] - pixels[rows])).round()
        return Image.fromarray(pixels)

    def picture(self) -> Image.Image:
        """The overlay above a legend of the classes in it; small images are magnified."""
        found = {name: share for name, share in list(self.areas.items())[1:] if share > 0}
        overlay = magnified(self.overlay())
        overlay.thumbnail((JPEG_LIMIT, JPEG_LIMIT))
        width = max(overlay.width, READABLE)
        strip = _legend({name: (self.classes.index(name), share) for name, share in found.items()}, width)
        whole = Image.new("RGB", (width, overlay.height + strip.height), "white")
        whole.paste(overlay)
        whole.paste(strip, (0, overlay.height))
        return whole

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


def _legend(entries: dict[str, tuple[int, float]], width: int) -> Image.Image:
    """A white strip of that width with the colour, name and share of each class, on as many lines as needed.

    ``entries``: channel and share by name.
    """
    size = max(10, round(width / 60))
    font, line, gap = _font(size), round(1.8 * size), size
    texts = {name: f"{name} {percentage(share)}" for name, (_, share) in entries.items()} or {"": "only background"}
    x, y, places = gap, gap // 2, {}
    for name, text in texts.items():
        needed = round(1.5 * size + font.getlength(text))
        if x > gap and x + needed + gap > width:
            x, y = gap, y + line
        places[name] = (x, y)
        x += needed + 2 * gap
    strip = Image.new("RGB", (width, y + line + gap // 2), "white")
    draw = ImageDraw.Draw(strip)
    for name, (left, top) in places.items():
        if name in entries:
            colour = tuple(palette()[entries[name][0]].tolist())
            draw.rectangle((left, top + size // 3, left + size, top + size // 3 + size), fill=colour)
        draw.text((left + math.ceil(1.5 * size), top), texts[name], font=font, fill="black")
    return strip


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Matplotlib's font: it covers more alphabets than Pillow's."""
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
