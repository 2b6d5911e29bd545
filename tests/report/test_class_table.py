import io
import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from incseg.console import Console, Table
from incseg.report.class_table import ClassScore, class_table, run_class_table
from incseg.results import Run
from sample_runs import write_run

LONG = "bannister, banister, balustrade, balusters, handrail"


def shown(table: Table, width: int = 80) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width).show(table)
    return screen.getvalue().splitlines()


def test_every_class_has_its_row_with_what_it_was_when_it_was_learnt(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path / "run", "ft", classes=("background", "cat", "dog", "cow", "hen"), task="2-1"))
    table = run_class_table(run, "the page")
    assert table.headers == ["class", "step", "share", "recall", "precision", "before", "IoU"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == run.classes
    assert [rows[name][0] for name in run.classes] == ["0", "0", "0", "1", "2 new"]
    first, last = run.steps[0], run.steps[-1]
    for name in run.classes:
        assert rows[name][-1] == f"{100 * last['iou'][name]:.1f}"
    assert rows["cat"][-2] == f"{100 * first['iou']['cat']:.1f}"
    assert rows["cow"][-2] == f"{100 * run.steps[1]['iou']['cow']:.1f}"
    assert rows["hen"][-2] == "–"
    truth, predicted = sum(last["confusion"][4]), sum(row[4] for row in last["confusion"])
    pixels = sum(map(sum, last["confusion"]))
    expected = [truth / pixels, last["confusion"][4][4] / truth, last["confusion"][4][4] / predicted]
    assert rows["hen"][1:4] == [f"{100 * value:.1f}" for value in expected]


def test_a_run_of_one_step_has_no_before(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path / "run", classes=("background", "cat", "dog"), task="offline"))
    assert run_class_table(run, "").headers == ["class", "step", "share", "recall", "precision", "IoU"]


def test_a_class_that_was_not_scored_has_dashes_only(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", classes=("background", "cat", "dog"), task="1-1")
    result = json.loads((folder / "result.json").read_text())
    result["steps"][-1]["iou"]["background"] = None
    (folder / "result.json").write_text(json.dumps(result))
    row = run_class_table(Run.read(folder), "").rows[0]
    assert (row[0], *row[2:5], row[-1]) == ("background", "–", "–", "–", "–")


@pytest.mark.parametrize("number", [20, 150])
@pytest.mark.parametrize("name", ["class", LONG, "猫" * 40])
def test_it_fits_80_columns_without_breaking_a_word(number: int, name: str, tmp_path: Path) -> None:
    classes = ("background", *(f"{index} {name}" for index in range(number)))
    folder = write_run(tmp_path / "r", "mib", classes=classes, task=f"{number - 5}-1", pictures=0)
    table = run_class_table(Run.read(folder), "report.html")
    lines = shown(table)
    assert max(map(cell_len, lines[1:])) <= 80
    assert all(any(row[0] in line for line in lines) for row in table.rows)  # no name goes on in the next line
    header = next(line for line in lines if "precision" in line)
    assert all(word in header for word in ("class", "step", "share", "recall", "precision", "before", "IoU"))
    numbers = [line for line in lines if line.rstrip(" │").endswith(table.rows[0][-1])]
    assert len(numbers) == (number + 1 if number < 40 else 20)


def test_of_many_classes_the_worst_and_the_best_are_shown_and_where_the_rest_is() -> None:
    scores = [ClassScore(f"class {index}", (index * 37 % 101) / 101) for index in range(101)]
    scores.append(ClassScore("never seen", float("nan")))
    table = class_table("t", scores, "note.", "runs/report.html")
    ious = [float(row[-1]) for row in table.rows if row[0] != "…"]
    expected = sorted(score.iou for score in scores[:-1])
    assert ious == [round(100 * value, 1) for value in (*expected[:10], *expected[-10:])]
    assert table.rows[10][0] == "…"
    assert "10 worst and the 10 best of 102 classes" in table.title
    assert table.note == "note. All classes: runs/report.html."
    assert "never seen" not in {row[0] for row in table.rows}
