"""Line charts as inline SVG; colours, dashes and fonts come from the page's style sheet, in light and dark."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from incseg.console import decimal

Point = tuple[float, float]

WIDTH, HEIGHT = 380, 230
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 26, 34
STYLES = 8  # of runs in the style sheet, each with its own colour and dash
MARKERS = ("M-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0 -6.4,0z", "M-3,-3h6v6h-6z", "M0,-3.8L3.6,2.8H-3.6z",
           "M0,-4.2L4.2,0L0,4.2L-4.2,0z")  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """The values of one run; a NaN interrupts the line."""

    run: int
    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """A chart of one quantity over the steps."""

    title: str
    curves: Sequence[Curve]
    x_range: tuple[float, float]
    x_ticks: Sequence[tuple[float, str]]
    y_range: tuple[float, float]
    x_label: str = "step"
    x_borders: Sequence[float] = ()
    marked: bool = False
    """Whether every point gets a marker."""
    width: float = WIDTH
    height: float = HEIGHT

    def to_svg(self) -> Markup:
        """The panel as inline SVG; ElementTree escapes all text."""
        svg = ET.Element("svg", {"viewBox": f"0 0 {self.width:g} {self.height:g}", "class": "panel", "role": "img"})
        svg.set("aria-label", f"{self.title}: {', '.join(curve.name for curve in self.curves)}")
        _text(svg, self.title, LEFT, 14, "panel-title")
        for value in ticks(*self.y_range):
            y = self._y(value)
            ET.SubElement(svg, "line", _numbers(x1=LEFT, x2=self.width - RIGHT, y1=y, y2=y) | {"class": "grid"})
            _text(svg, f"{value:g}", LEFT - 6, y + 4, "tick end")
        for place in self.x_borders:
            x = self._x(place)
            ET.SubElement(svg, "line", _numbers(x1=x, x2=x, y1=TOP, y2=self.height - BOTTOM) | {"class": "grid"})
        for place, label in self.x_ticks:
            _text(svg, label, self._x(place), self.height - BOTTOM + 15, "tick middle")
        _text(svg, self.x_label, (LEFT + self.width - RIGHT) / 2, self.height - 4, "tick middle")
        for curve in self.curves:
            self._draw(svg, curve)
        return Markup(ET.tostring(svg, encoding="unicode"))

    def _draw(self, svg: ET.Element, curve: Curve) -> None:
        group = ET.SubElement(svg, "g", {"class": style_of(curve.run)})
        for piece in _unbroken(curve.points):
            path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in piece)
            ET.SubElement(group, "polyline", {"points": path, "class": "line"})
            for x, y in piece if self.marked else ():
                place = {"transform": f"translate({self._x(x):.1f} {self._y(y):.1f})"}
                marker = ET.SubElement(group, "path", place | {"d": marker_of(curve.run), "class": "marker"})
                ET.SubElement(marker, "title").text = f"{curve.name}, {self.x_label} {x:g}: {decimal(y, 1)}"

    def _x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / ((high - low) or 1) * (self.width - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - BOTTOM - (value - low) / ((high - low) or 1) * (self.height - TOP - BOTTOM)


def style_of(run: int) -> str:
    """The style sheet's classes for a run."""
    return f"run run-{run % STYLES}"


def marker_of(run: int) -> str:
    """The outline of a run's marker around the origin; another one when colours begin again."""
    return MARKERS[(run + run // STYLES) % len(MARKERS)]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in a range, about five.

    >>> ticks(0, 100)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    step = _tick_distance(low, high)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * index, 12) + 0.0 for index in range(first, last + 1)]


def rounded_range(values: Sequence[float]) -> tuple[float, float]:
    """The smallest range between round numbers that holds zero and all values; up to 1 if all are zero.

    >>> rounded_range([-0.03, 0.11])
    (-0.05, 0.15)
    """
    low, high = min([0.0, *values]), max([0.0, *values])
    if low == high:
        return 0.0, 1.0
    step = _tick_distance(low, high)
    return round(step * math.floor(low / step), 12), round(step * math.ceil(high / step), 12)


def _tick_distance(low: float, high: float, about: int = 5) -> float:
    """1, 2 or 5 times a power of ten."""
    rough = (high - low) / about or 1.0
    power = math.pow(10, math.floor(math.log10(rough)))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= 0.95 * rough)


def _unbroken(points: Sequence[Point]) -> Iterator[list[Point]]:
    """The pieces of a line between NaNs."""
    for is_finite, piece in groupby(points, key=lambda point: math.isfinite(point[1])):
        if is_finite:
            yield list(piece)


def _numbers(**values: float) -> dict[str, str]:
    return {name: f"{value:.1f}" for name, value in values.items()}


def _text(parent: ET.Element, text: str, x: float, y: float, style: str) -> None:
    ET.SubElement(parent, "text", _numbers(x=x, y=y) | {"class": style}).text = text
