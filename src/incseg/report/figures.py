"""Charts of results as SVG files that stand alone; the same results give the same bytes."""

import itertools
import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources

from incseg.metrics import mean
from incseg.report.charts import Curve, Panel, Point, marker_of, rounded_range, style_of, ticks
from incseg.results import Run

LETTER = 6.2  # pixels that a letter of the legend takes, about
FIRST_ROW, ROW = 34, 16  # pixels: where the legend begins, and the height of an entry
WIDTH, LEAST_HEIGHT = 520, 300  # pixels of the chart, which is as high as its legend if that is higher
RULES = (
    "text{font:11px sans-serif;fill:#444}.panel-title{font-weight:600;font-size:12.5px}.end{text-anchor:end}"
    ".middle{text-anchor:middle}.grid{stroke:#ddd;stroke-width:.8}.marker{fill:currentColor}"
    ".line{fill:none;stroke:currentColor;stroke-width:1.8}"
)


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ only in their seed, together."""
    return {label: [run for run in runs if run.label == label] for label in dict.fromkeys(run.label for run in runs)}


def principal(runs: Sequence[Run]) -> list[Run]:
    """Of the variants of a method that with the most seeds, or else with the fewest words to its name."""
    seeds, chosen = Counter(run.label for run in runs), dict[str, str]()
    for run in runs:
        rivals = chosen.get(run.method, run.label), run.label
        chosen[run.method] = min(rivals, key=lambda label: (-seeds[label], len(label)))
    return [run for run in runs if run.label == chosen[run.method]]


def over_the_steps(runs: Sequence[Run]) -> str:
    """mIoU of all classes known so far after every step, background counted; the mean over the seeds."""
    steps = range(max(len(run.steps) for run in runs))
    values: dict[str, Sequence[Point]] = {
        label: [(step, 100 * mean(run.miou(step, "all_with_background") for run in some)) for step in steps]
        for label, some in by_label(runs).items()
    }
    curves = _best_first(values)
    high = rounded_range([y for curve in curves for _, y in curve.points if math.isfinite(y)])
    places = [(step, str(step)) for step in steps]
    title = "mIoU of all classes so far, with background (%)"
    return standalone(Panel(title, curves, (-0.1, steps[-1] + 0.1), places, high, "after step", marked=True))


def old_and_new(runs: Sequence[Run]) -> str:
    """Every method as a point: mIoU of the classes of step 0, and of those learnt later, both without background."""
    values: dict[str, Sequence[Point]] = {}
    for label, some in by_label(runs).items():
        scores = [run.counted("ucd") for run in some]
        old, new = (100 * mean(each[name] for each in scores) for name in ("base", "later"))
        values[label] = [(old, new)]
    curves = _best_first(values)
    points = list(itertools.chain(*(curve.points for curve in curves)))
    across, up = (rounded_range([point[axis] for point in points if math.isfinite(point[axis])]) for axis in (0, 1))
    places = [(value, f"{value:g}") for value in ticks(*across)]
    title, below = "mIoU of the classes learnt later (%)", "mIoU of the classes of step 0 (%)"
    return standalone(Panel(title, curves, across, places, up, below, marked=True))


def _best_first(values: Mapping[str, Sequence[Point]]) -> list[Curve]:
    """In the order in which they end, so that the legend is read like the chart.

    Colours and markers go by name: in all charts of the same runs a method looks alike.
    """
    look = {name: place for place, name in enumerate(sorted(values))}

    def end(name: str) -> float:
        last = values[name][-1][1]
        return last if math.isfinite(last) else -math.inf

    return [Curve(look[name], name, values[name]) for name in sorted(values, key=end, reverse=True)]


def standalone(panel: Panel) -> str:
    """A panel with its colours, on white, and with a legend at its right."""
    entries = FIRST_ROW + ROW * len(panel.curves)
    panel = replace(panel, width=WIDTH, height=max(LEAST_HEIGHT, entries))
    svg = ET.fromstring(panel.to_svg())
    width = WIDTH + 26 + round(LETTER * max(len(curve.name) for curve in panel.curves))
    svg.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {panel.height:g}"}
    svg.insert(0, ET.Element("rect", {"width": "100%", "height": "100%", "fill": "white"}))
    style = ET.Element("style")
    style.text = RULES + "".join(f".run-{index}{{color:{colour}}}" for index, colour in _colours())
    svg.insert(0, style)
    for row, curve in enumerate(panel.curves):
        entry = ET.SubElement(
            svg, "g", {"class": style_of(curve.run), "transform": f"translate({WIDTH + 8} {FIRST_ROW + ROW * row})"}
        )
        ET.SubElement(entry, "path", {"class": "marker", "d": marker_of(curve.run)})
        ET.SubElement(entry, "text", {"x": "10", "y": "4"}).text = curve.name
    return f"{ET.tostring(svg, encoding='unicode')}\n"


def _colours() -> list[tuple[str, str]]:
    """Those of the page in its light theme."""
    sheet = (resources.files("incseg.report") / "template" / "style.css").read_text(encoding="utf-8")
    return re.findall(r"--run-(\d): light-dark\((#\w+),", sheet)
