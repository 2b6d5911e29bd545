import xml.etree.ElementTree as ET

import pytest

from incseg.report.charts import Curve, Panel, rounded_range, ticks


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = [line.get("points", "") for line in ET.fromstring(svg).iter("polyline")]
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in lines]


def test_a_line_falls_where_the_value_does_and_breaks_where_there_is_none() -> None:
    values = [(0.0, 100.0), (1.0, 0.0), (2.0, float("nan")), (3.0, 50.0)]
    panel = Panel("<title>", [Curve(0, "a&b", values)], (0, 3), [(0, "0")], (0, 100), marked=True)
    first, second = points(panel.to_svg())
    assert first[0][1] < first[1][1]  # y grows downwards
    assert second[0][1] == pytest.approx((first[0][1] + first[1][1]) / 2)
    assert "a&amp;b" in panel.to_svg()


@pytest.mark.parametrize("values", [[0.0], [5.0], [-3.0, 2.0], [1e-9, 2e-9], [123456.0]])
def test_ranges_are_round_and_hold_all_values(values: list[float]) -> None:
    low, high = rounded_range(values)
    assert low <= min(0, *values)
    assert high >= max(0, *values)
    marks = ticks(low, high)
    assert (marks[0], marks[-1]) == pytest.approx((low, high))
    assert 2 <= len(marks) <= 8  # one alone would give no scale
