import math
from pathlib import Path
from typing import Any

import pytest

from incseg.paper.plan import Plan, make_plan
from incseg.paper.plots import draw, over_parameter, over_steps
from incseg.paper.reproduce import read_outcome
from made_up import write_result


def finished(plan: Plan) -> Plan:
    """Results for all runs of a plan: the row's place in the table, the step and the seed decide."""
    for run in plan.runs:
        level = 0.3 + 0.1 * plan.rows.index(run.row) + 0.01 * (run.seed - 42)

        def iou(step: int, _: int, level: float = level) -> float:
            return level - 0.02 * step

        write_result(
            run.folder, run.config.protocol, run.row.method, iou, seed=run.seed, overrides=dict(run.row.settings)
        )
    return plan


def drawn(axes: Any) -> dict[str, list[float]]:
    """Heights of every labelled line, bars aside."""
    plain = {line.get_label(): line for line in axes.get_lines()}
    with_bars = {bars.get_label(): bars.lines[0] for bars in axes.containers}
    return {label: list(line.get_ydata()) for label, line in {**plain, **with_bars}.items()}


def paper_points(axes: Any) -> list[float]:
    """Heights of the markers that stand alone."""
    heights = [list(line.get_ydata()) for line in axes.get_lines()]
    return [values[0] for values in heights if len(values) == 1]


def test_lines_over_the_batch_size_with_the_papers_points(tmp_path: Path) -> None:
    rows = ["mib-2", "mib-24", "mib+ucd-2", "mib+ucd-24"]
    plan = finished(make_plan("batch-size", rows=rows, seeds=2, out=tmp_path))
    (panel,) = over_parameter("batch size", read_outcome(plan)).axes
    lines = drawn(panel)
    assert lines["MiB"] == pytest.approx([28.5, 38.5])
    assert lines["MiB+UCD"] == pytest.approx([48.5, 58.5])
    assert lines["MiB, paper"] == pytest.approx([math.nan, 64.7], nan_ok=True)
    assert lines["MiB+UCD, paper"] == pytest.approx([math.nan, 66.3], nan_ok=True)
    assert [text.get_text() for text in panel.get_xticklabels()] == ["2", "24"]


def test_lines_over_the_steps_end_beside_the_papers_number(tmp_path: Path) -> None:
    plan = finished(make_plan("voc-main", rows=["mib", "joint"], columns=["15-1/disjoint"], out=tmp_path))
    ((block, lines),) = read_outcome(plan)
    (axes,) = over_steps(block, lines).axes
    assert drawn(axes)["MiB"] == pytest.approx([30, 28, 26, 24, 22, 20])
    assert drawn(axes)["Joint (all classes at once)"] == pytest.approx([40, 40])
    assert paper_points(axes) == [37.9, 77.4]


def test_files_are_written_for_what_is_finished(tmp_path: Path) -> None:
    plan = make_plan("ablation-temperature", columns=["voc"], rows=["1", "0.1"], out=tmp_path)
    assert draw(plan.table, read_outcome(plan), tmp_path) == []
    written = draw(plan.table, read_outcome(finished(plan)), tmp_path)
    assert sorted(path.name for path in written) == [
        "ablation-temperature-voc-15-5-disjoint-steps.png", "ablation-temperature-voc-15-5-disjoint-steps.svg",
        "ablation-temperature.png", "ablation-temperature.svg",
    ]  # fmt: skip
    assert all(path.exists() for path in written)
