import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from incseg.console import Console
from incseg.errors import InputError
from incseg.report import tables
from incseg.report.page import write_report
from incseg.report.runs import read_runs
from incseg.run_folder import Run


def step_entry(index: int, new: list[str], iou: dict[str, float | None]) -> dict[str, Any]:
    known = [v for k, v in iou.items() if v is not None and k != "background"]
    miou = {"old": None, "new": None, "all": sum(known) / len(known), "all_with_background": 0.9, "harmonic": None}
    return {"step": index, "new_classes": new, "training_images": 3, "miou": miou, "iou": iou, "confusion": []}


def write_run(
    folder: Path,
    method: str = "ft",
    final: float | None = 0.25,
    seed: int = 1,
    settings: dict[str, object] | None = None,
) -> Path:
    first: dict[str, float | None] = {"background": 0.9, "<b>cat</b>": 0.5}
    steps = [step_entry(0, ["<b>cat</b>"], first), step_entry(1, ["dog"], {**first, "<b>cat</b>": final, "dog": 0.75})]
    result = {
        "protocol": "folder/1-1/overlapped", "method": method, "seed": seed, "environment": {"torch": "2"},
        "settings": settings or {},
        "classes": ["background", "<b>cat</b>", "dog"], "steps": steps, "average_miou": 0.5,
        "forgetting": {"mean": 0.25, "classes": {}},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_the_summary_is_in_the_papers_layout(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / name, name) for name in ("ft", "mib")])
    table = tables.summary(runs)
    assert table.headers[:4] == ["method", "1", "2", "all"]
    assert table.rows[0][:4] == ["ft", "25.0", "75.0", "50.0"]
    assert [row[0] for row in table.rows] == ["ft", "mib"]


def test_seeds_of_a_method_become_mean_and_deviation(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / str(s), "ft", final=v, seed=s) for s, v in ((1, 0.2), (2, 0.4))])
    assert tables.summary(runs).rows[0][1] == "30.0 ± 14.1"
    assert tables.per_step(runs).headers == ["step", "ft #1", "ft #2"]


def test_runs_of_other_settings_are_other_rows(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "a", "ucd", settings={"optim.epochs": 3}),
        write_run(tmp_path / "b", "ucd", settings={"optim.epochs": 3, "settings.ucd.temperature": 1.0}),
    ]
    rows = tables.summary(read_runs(folders)).rows
    assert [row[0] for row in rows] == ["ucd (ucd.temperature default)", "ucd (ucd.temperature 1.0)"]


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    with pytest.raises(InputError, match="the same run with the same seed"):
        read_runs([folder, folder])


def test_missing_values_are_dashes(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path / "run", final=None))
    assert math.isnan(run.iou(-1, "<b>cat</b>"))
    assert tables.summary([run]).rows[0][1] == "–"


def test_runs_of_different_protocols_are_not_compared(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    text = (second / "result.json").read_text().replace("1-1", "1-1-1")
    (second / "result.json").write_text(text)
    with pytest.raises(InputError, match="cannot share a report"):
        read_runs([first, second])


def test_folders_without_a_result_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no result\.json"):
        Run.read(tmp_path)
    for text in ("{", "{}", "[]"):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(InputError, match="not a result of incseg"):
            Run.read(tmp_path)


def test_a_folder_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder: name the file to write"):
        write_report([write_run(tmp_path / "run")], tmp_path)


def test_tables_print_in_a_narrow_terminal(tmp_path: Path) -> None:
    console = Console(width=70, file=io.StringIO(), record=True)
    console.print(tables.summary([Run.read(write_run(tmp_path / "run"))]).for_terminal(console.width))
    assert "25.0" in console.export_text()
