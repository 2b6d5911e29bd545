import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from incseg.report import figures
from incseg.report.charts import Line, Panel, rounded_range, ticks
from incseg.report.figures import loss_curves, most_confused, sparse_shares
from incseg.report.runs import read_runs
from incseg.run_folder import Run
from sample_runs import NAMES, write_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return read_runs([write_run(tmp_path / name, name) for name in ("ft", "mib")])


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = [line.get("points", "") for line in ET.fromstring(svg).iter("polyline")]
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in lines]


def test_a_line_falls_where_the_value_does_and_breaks_where_there_is_none() -> None:
    values = [(0.0, 100.0), (1.0, 0.0), (2.0, float("nan")), (3.0, 50.0)]
    panel = Panel("<title>", [Line(0, "a&b", values)], (0, 3), [(0, "0")], (0, 100), marked=True)
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
    assert 1 <= len(marks) <= 8


def test_miou_panels_follow_the_results(runs: list[Run]) -> None:
    so_far, first = figures.miou_over_steps(runs)
    assert [y for _, y in first.lines[0].points] == [pytest.approx(100 * runs[0].miou(0)), 0.0]
    assert so_far.lines[1].points[1][1] == pytest.approx(100 * runs[1].miou(1))


def test_classes_stand_under_the_step_that_taught_them(runs: list[Run]) -> None:
    groups = figures.iou_over_steps(runs)
    assert [[row.name for row in group.rows] for group in groups] == [
        [NAMES[0], NAMES[1], NAMES[2]], [NAMES[3], NAMES[4]], ["without background"]
    ]  # fmt: skip
    forgotten, new = groups[0].rows[1].cells[0], groups[1].rows[0].cells[0]
    assert [cell.level for cell in forgotten] == [10, 0]
    assert (new[0].text, new[0].level) == ("", None)


def test_forgetting_is_of_earlier_classes_and_on_average(runs: list[Run]) -> None:
    rows = figures.forgetting(runs)
    assert [name for name, _ in rows] == [NAMES[1], NAMES[2], "mean"]
    ft, mib = rows[0][1]
    assert ft.length == pytest.approx(100 * runs[0].iou(0, NAMES[1]), abs=0.1)
    assert mib.length < 10


def test_losses_have_a_panel_per_term(runs: list[Run]) -> None:
    panels = {panel.title: panel for panel in figures.loss_terms(runs)}
    assert set(panels) == {"segmentation", "distillation"}
    assert [line.name for line in panels["distillation"].lines] == ["mib"]


def write_log(run: Path, values: list[list[float]]) -> Run:
    lines = [
        {"step": f"step {index}", "iteration": i, "epoch": 1, "segmentation": value, "learning_rate": 1.0}
        for index, step in enumerate(values)
        for i, value in enumerate(step, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run.read(run)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", pictures=0)


def test_time_counts_steps_whatever_their_length(folder: Path) -> None:
    curve = loss_curves(write_log(folder, [[3.0, 1.0], [9.0, 8.0, 7.0, 6.0]]))["segmentation"]
    times = [x for x, y in curve if not math.isnan(y)]
    assert times == [0.5, 1.0, 1.25, 1.5, 1.75, 2.0]
    assert [index for index, (_, y) in enumerate(curve) if math.isnan(y)] == [2, 7]  # where a line is interrupted


def test_long_curves_are_thinned_to_means(folder: Path) -> None:
    curve = loss_curves(write_log(folder, [[0.0, 2.0] * 500, [4.0] * 1000]), most=20)["segmentation"]
    values = [y for _, y in curve if not math.isnan(y)]
    assert values == [1.0] * 10 + [4.0] * 10


def test_the_learning_rate_is_no_loss(folder: Path) -> None:
    assert set(loss_curves(write_log(folder, [[1.0], [1.0]]))) == {"segmentation"}


def test_a_line_cut_short_and_a_step_not_scored_are_left_out(folder: Path) -> None:
    run = write_log(folder, [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": "step 2", "itera')
    assert max(y for _, y in loss_curves(run)["segmentation"] if not math.isnan(y)) == 2.0


CLASSES = ["background", "cat", "dog"]
MATRIX = [[90, 10, 0], [0, 0, 0], [150, 49, 1]]


def test_shares_are_of_the_true_class_and_zeros_are_left_out() -> None:
    assert sparse_shares(MATRIX) == [[0, 900, 1, 100], [], [0, 750, 1, 245, 2, 5]]


def test_mistakes_come_largest_first_and_the_diagonal_is_none() -> None:
    mistakes = most_confused(MATRIX, CLASSES)
    assert [(m.truth, m.prediction) for m in mistakes] == [("dog", "background"), ("dog", "cat"), ("background", "cat")]
    assert [m.share for m in mistakes] == pytest.approx([0.75, 0.245, 0.1])
    assert len(most_confused(MATRIX, CLASSES, most=1)) == 1
