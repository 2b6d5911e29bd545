"""Line charts as SVG: small panels whose colours, dashes and fonts are the style sheet's."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

Point = tuple[float, float]

WIDTH, HEIGHT = 380, 230
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 26, 34
STYLES = 8  # the style sheet tells so many runs apart by colour, dash and marker
MARKERS = ("M-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0 -6.4,0z", "M-3,-3h6v6h-6z", "M0,-3.8L3.6,2.8H-3.6z",
           "M0,-4.2L4.2,0L0,4.2L-4.2,0z")  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A run's values; NaN interrupts the line."""

    run: int
    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """A chart of one quantity over the steps."""

    title: str
    lines: Sequence[Line]
    x_range: tuple[float, float]
    x_ticks: Sequence[tuple[float, str]]
    y_range: tuple[float, float]
    x_label: str = "step"
    x_borders: Sequence[float] = ()
    marked: bool = False
    """Points are few and each deserves a marker."""

    def to_svg(self) -> Markup:
        """An inline SVG; all text is escaped by the tree it is built in."""
        svg = ET.Element("svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "class": "panel", "role": "img"})
        svg.set("aria-label", f"{self.title}: {', '.join(line.name for line in self.lines)}")
        _text(svg, self.title, LEFT, 14, "panel-title")
        for value in ticks(*self.y_range):
            y = self._y(value)
            ET.SubElement(svg, "line", _numbers(x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y) | {"class": "grid"})
            _text(svg, f"{value:g}", LEFT - 6, y + 4, "tick end")
        for place in self.x_borders:
            x = self._x(place)
            ET.SubElement(svg, "line", _numbers(x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM) | {"class": "grid"})
        for place, label in self.x_ticks:
            _text(svg, label, self._x(place), HEIGHT - BOTTOM + 15, "tick middle")
        _text(svg, self.x_label, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "tick middle")
        for line in self.lines:
            self._draw(svg, line)
        return Markup(ET.tostring(svg, encoding="unicode"))

    def _draw(self, svg: ET.Element, line: Line) -> None:
        group = ET.SubElement(svg, "g", {"class": style_of(line.run)})
        for piece in _unbroken(line.points):
            path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in piece)
            ET.SubElement(group, "polyline", {"points": path, "class": "line"})
            for x, y in piece if self.marked else ():
                place = {"transform": f"translate({self._x(x):.1f} {self._y(y):.1f})"}
                marker = ET.SubElement(group, "path", place | {"d": marker_of(line.run), "class": "marker"})
                ET.SubElement(marker, "title").text = f"{line.name}, {self.x_label} {x:g}: {y:.1f}"

    def _x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM)


def style_of(run: int) -> str:
    """The class of the style sheet that draws a run."""
    return f"run run-{run % STYLES}"


def marker_of(run: int) -> str:
    """The outline of a run's marker around the origin."""
    return MARKERS[run % len(MARKERS)]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers within a range.

    >>> ticks(0, 100)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    step = _tick_distance(low, high)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * index, 12) + 0.0 for index in range(first, last + 1)]


def rounded_range(values: Sequence[float]) -> tuple[float, float]:
    """From one round number to another: all values and zero lie between.

    >>> rounded_range([-0.03, 0.11])
    (-0.05, 0.15)
    """
    low, high = min([0.0, *values]), max([0.0, *values])
    step = _tick_distance(low, high)
    return round(step * math.floor(low / step), 12), round(step * math.ceil(high / step), 12)


def _tick_distance(low: float, high: float, about: int = 5) -> float:
    """1, 2 or 5 times a power of ten."""
    rough = (high - low) / about or 1.0
    power = math.pow(10, math.floor(math.log10(rough)))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= 0.95 * rough)


def _unbroken(points: Sequence[Point]) -> Iterator[list[Point]]:
    for there, piece in groupby(points, key=lambda point: math.isfinite(point[1])):
        if there:
            yield list(piece)


def _numbers(**values: float) -> dict[str, str]:
    return {name: f"{value:.1f}" for name, value in values.items()}


def _text(parent: ET.Element, text: str, x: float, y: float, style: str) -> None:
    ET.SubElement(parent, "text", _numbers(x=x, y=y) | {"class": style}).text = text
