import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from incseg.config import load_recipe
from incseg.console import Console
from incseg.errors import InputError
from incseg.report import summary
from incseg.report.summary import conventions_table, per_step_table, read_runs, summary_table
from incseg.results import Run
from incseg.run_folder import write_json
from made_up import write_result


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
    table = summary_table(runs)
    assert table.headers[:4] == ["method", "1", "2", "all w/o bg"]
    assert table.rows[0][:4] == ["ft", "25.0", "75.0", "50.0"]
    assert [row[0] for row in table.rows] == ["ft", "mib"]


def test_seeds_of_a_method_become_mean_and_deviation(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / str(s), "ft", final=v, seed=s) for s, v in ((1, 0.2), (2, 0.4))])
    assert summary_table(runs).rows[0][1] == "30.0 ± 14.1"
    assert per_step_table(runs).headers == ["step", "ft #1", "ft #2"]


def test_runs_of_other_settings_are_other_rows(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "a", "ucd", settings={"optim.epochs": 3}),
        write_run(tmp_path / "b", "ucd", settings={"optim.epochs": 3, "settings.ucd.temperature": 1.0}),
    ]
    rows = summary_table(read_runs(folders)).rows
    assert [row[0] for row in rows] == ["ucd", "ucd (ucd.temperature 1.0)"]


def test_a_setting_that_a_result_does_not_name_is_the_methods_default_and_not_the_recipes(tmp_path: Path) -> None:
    """VOC's recipe chooses a context for ``analytic``: a result from before it did is another row, and says so."""
    folders = [write_result(tmp_path / name, "voc/15-5/overlapped", "analytic", lambda *_: 0.5) for name in "ab"]
    before = json.loads((folders[0] / "result.json").read_text())
    before["settings"] = {name: x for name, x in before["settings"].items() if not name.startswith("settings.")}
    write_json(folders[0] / "result.json", before)
    labels = [run.label for run in read_runs(folders)]
    assert labels[1] == "analytic"
    assert labels[0] == "analytic (analytic.context default, analytic.crops default, analytic.mirrored default)"


def test_usual_settings_and_the_weights_of_an_encoder_are_not_in_a_name(tmp_path: Path) -> None:
    usual = load_recipe("folder/1-1/overlapped").model.encoder
    folders = [
        write_run(tmp_path / name, settings={"model.encoder": name, "model.weights": f"{name}.pth"})
        for name in (usual, "other")
    ]
    assert [run.label for run in read_runs(folders)] == ["ft", "ft (model.encoder other)"]


def test_weights_that_do_not_come_with_the_encoder_are_in_a_name(tmp_path: Path) -> None:
    chosen = [("resnet18", "imagenet", 1), ("resnet18", "none", 2), ("resnet50", "imagenet", 1)]
    folders = [
        write_run(tmp_path / str(n), seed=seed, settings={"model.encoder": encoder, "model.weights": weights})
        for n, (encoder, weights, seed) in enumerate(chosen)
    ]
    assert len({run.label for run in read_runs(folders)}) == 3


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    with pytest.raises(InputError, match="the same run with the same seed"):
        read_runs([folder, folder])


def test_extensions_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    """Their models and data are no settings, and nothing else may differ."""
    folders = [tmp_path / place for place in ("here/pets", "there/pets", "farm")]
    for folder in folders:
        write_result(folder, "voc/15-5/overlapped", "analytic", lambda *_: 0.5)
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**result, "extends": "mine"}))
    assert [run.label for run in read_runs(folders)] == [
        f"analytic ({tmp_path / 'here' / 'pets'})", f"analytic ({tmp_path / 'there' / 'pets'})", "analytic (farm)"
    ]  # fmt: skip
    assert [run.label for run in read_runs(folders[:1])] == ["analytic"]
    with pytest.raises(InputError, match="are the same run with the same seed"):
        read_runs([folders[0], folders[0]])


def test_missing_values_are_dashes(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path / "run", final=None))
    assert math.isnan(run.iou(-1, "<b>cat</b>"))
    assert summary_table([run]).rows[0][1] == "–"


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


def test_tables_print_in_a_narrow_terminal(tmp_path: Path) -> None:
    console = Console(width=70, file=io.StringIO(), record=True)
    console.print(*summary_table([Run.read(write_run(tmp_path / "run"))]).for_terminal(console.width))
    assert "25.0" in console.export_text()


def by_channel(_: int, channel: int) -> float:
    """Background 0.9, classes 1 to 15 at 0.5, the others at 0.3."""
    return 0.9 if channel == 0 else 0.5 if channel <= 15 else 0.3


def test_all_classes_at_once_may_stand_beside_the_steps(tmp_path: Path) -> None:
    offline = write_result(tmp_path / "offline", "voc/offline/overlapped", "ft", lambda _, __: 0.8)
    stepwise = write_result(tmp_path / "steps", "voc/15-1/disjoint", "ft", by_channel)
    runs = read_runs([offline, stepwise])
    assert [run.label for run in runs] == ["ft", "ft (offline)"]
    assert [row[:4] for row in summary_table(runs).rows] == [
        ["ft", "50.0", "30.0", "45.0"],
        ["ft (offline)", "80.0", "80.0", "80.0"],
    ]
    assert [row[2] for row in per_step_table(runs).rows] == ["–"] * 5 + ["80.0"]
    assert math.isnan(runs[1].iou(0, "class 1"))
    assert runs[1].pictures(5) == offline / "step-0" / "predictions"


def test_all_classes_at_once_must_be_the_same_classes(tmp_path: Path) -> None:
    offline = write_result(tmp_path / "offline", "cityscapes/offline/overlapped", "ft", by_channel)
    stepwise = write_result(tmp_path / "steps", "voc/15-5/disjoint", "ft", by_channel)
    half = write_result(tmp_path / "half", "voc/15-5/disjoint", "mib", by_channel, steps=1)
    for other in (offline, half):
        with pytest.raises(InputError, match="cannot share a report"):
            read_runs([stepwise, other])


def test_the_summary_has_the_groups_of_every_step(tmp_path: Path) -> None:
    def headers(protocol: str) -> list[str]:
        run = Run.read(write_result(tmp_path / protocol.replace("/", "-"), protocol, "mib", by_channel))
        return list(summary_table([run]).headers[1:])

    scores = ["all w/o bg", "all+bg", "harmonic", "forgetting", "avg. steps w/o bg", "avg. steps+bg"]
    assert headers("voc/15-5/disjoint") == ["1-15", "16-20", *scores]
    assert headers("voc/15-1/disjoint") == ["1-15", "16-20", *scores]
    assert headers("ade20k/50-50/disjoint") == ["1-50", "51-100", "101-150", "51-150", *scores]
    assert headers("voc/offline/overlapped") == ["1-20", *scores]


def test_harmonic_is_of_the_columns_beside_it_also_where_all_classes_were_learnt_at_once(tmp_path: Path) -> None:
    stepwise = write_result(tmp_path / "steps", "voc/15-1/disjoint", "ft", by_channel)
    offline = write_result(tmp_path / "offline", "voc/offline/overlapped", "ft", by_channel)
    table = summary_table(read_runs([stepwise, offline]))
    column = table.headers.index("harmonic")
    assert [row[column] for row in table.rows] == ["37.5", "37.5"]  # 2 * 50 * 30 / 80, not of 16-19 and 20


def test_averages_over_the_steps_with_and_without_background(tmp_path: Path) -> None:
    run = Run.read(write_result(tmp_path / "run", "voc/15-5/disjoint", "ft", by_channel))
    headers, (row,) = (table := summary_table([run])).headers, table.rows
    with_background = ((0.9 + 15 * 0.5) / 16 + (0.9 + 15 * 0.5 + 5 * 0.3) / 21) / 2
    assert row[headers.index("avg. steps w/o bg")] == f"{100 * (0.5 + 0.45) / 2:.1f}"
    assert row[headers.index("avg. steps+bg")] == f"{100 * with_background:.1f}"


def test_the_conventions_of_the_literature_stand_side_by_side(tmp_path: Path) -> None:
    run = Run.read(write_result(tmp_path / "run", "voc/15-1/disjoint", "ft", by_channel))
    table = conventions_table([run])
    base, everything = f"{100 * (0.9 + 15 * 0.5) / 16:.1f}", f"{100 * (0.9 + 15 * 0.5 + 5 * 0.3) / 21:.1f}"
    assert [row[:5] for row in table.rows] == [
        ["ft, as in ucd", "1-15, 16-20, 1-20", "50.0", "30.0", "45.0"],
        ["ft, as in plop", "0-15, 16-20, 0-20", base, "30.0", everything],
        ["ft, as in dkd", "0-15, 16-20, 0-20", base, "30.0", everything],
    ]
    offline = Run.read(write_result(tmp_path / "offline", "voc/offline/overlapped", "ft", by_channel))
    assert conventions_table([offline]).rows[0][1:] == ["1-20", "45.0", "–", "45.0", "–"]


def test_every_table_says_what_was_scored(tmp_path: Path) -> None:
    first = Run.read(write_result(tmp_path / "a", "voc/15-5/disjoint", "ft", by_channel))
    line = (
        "scored: paper (the middle square at 512 pixels), classes to come as background, only images with a class "
        "learnt so far, 1449 images"
    )
    for table in (summary_table([first]), conventions_table([first])):
        assert table.note.startswith(line)
    assert per_step_table([first]).note == line.replace("1449 images", "1240, 1449 images")
    whole = {"data": {"scoring": "full", "score_on": "all"}}
    other = Run.read(write_result(tmp_path / "b", "voc/15-5/disjoint", "mib", by_channel, overrides=whole))
    note = summary_table([first, other]).note
    assert f"ft: {line}\nmib: scored: full (whole images), classes to come as background, 1449 images" in note


def test_a_run_from_before_says_what_it_can(tmp_path: Path) -> None:
    assert Run.read(write_run(tmp_path / "a", settings={"data.scoring": "full"})).scored == (
        "scored: full, an unknown number of images"
    )


def test_a_new_score_needs_one_line_and_older_runs_show_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(summary.SCORES, "boundary", lambda run: run.miou(-1, "boundary"))
    old, new = write_run(tmp_path / "old", "ft"), write_run(tmp_path / "new", "mib")
    result = json.loads((new / "result.json").read_text())
    result["steps"][-1]["miou"]["boundary"] = 0.125
    (new / "result.json").write_text(json.dumps(result))
    table = summary_table(read_runs([old, new]))
    assert table.headers[-1] == "boundary"
    assert [row[-1] for row in table.rows] == ["–", "12.5"]
