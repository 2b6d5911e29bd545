import json
import math
from pathlib import Path

import pytest

from incseg.report.curves import loss_curves, loss_terms, miou_over_steps
from incseg.results import Run
from sample_runs import write_run


def test_miou_panels_follow_the_results(runs: list[Run]) -> None:
    so_far, first = miou_over_steps(runs)
    assert [y for _, y in first.curves[0].points] == [pytest.approx(100 * runs[0].miou(0)), 0.0]
    assert so_far.curves[1].points[1][1] == pytest.approx(100 * runs[1].miou(1))


def test_losses_have_a_panel_per_term(runs: list[Run]) -> None:
    panels = {panel.title: panel for panel in loss_terms(runs)}
    assert set(panels) == {"segmentation", "distillation"}
    assert [curve.name for curve in panels["distillation"].curves] == ["mib"]


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


def test_classes_that_were_not_measured_get_no_chart(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    for step in result["steps"]:
        step["iou"] |= dict.fromkeys(result["steps"][0]["new_classes"])
    (folder / "result.json").write_text(json.dumps(result))
    (panel,) = miou_over_steps([Run.read(folder)])
    assert panel.title.startswith("mIoU of all classes so far")


def test_an_extension_has_no_chart_of_a_mean_that_lacks_a_class(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text()) | {"extends": "mine"}
    for step in result["steps"]:
        step["iou"][result["steps"][0]["new_classes"][0]] = None
        step["miou"]["all"] = None
    (folder / "result.json").write_text(json.dumps(result))
    run = Run.read(folder)
    assert miou_over_steps([run]) == []
    assert math.isnan(run.group(1, run.base))
