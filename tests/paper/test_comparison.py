import json
import math
from pathlib import Path

import pytest

from incseg.paper import read_table
from incseg.paper.comparison import as_table, beside_the_paper, compare
from incseg.results import Run
from made_up import write_result

SCORED = (
    "scored: paper (the middle square at 512 pixels), classes to come as background, only images with a class learnt "
    "so far, 1449 images"
)
PROTOCOL = "voc/15-5/disjoint"


def by_channel(_: int, channel: int) -> float:
    """Background 0.9, classes 1 to 15 at 0.5, the others at 0.3."""
    return 0.9 if channel == 0 else 0.5 if channel <= 15 else 0.3


def cells(row: str, run: Run, table: str = "voc-main") -> dict[str, tuple[float, float]]:
    found = read_table(table)
    (compared,) = compare(found, found.block(run.protocol), {row: [run]})
    return {score.heading: (score.ours[0] if score.ours else math.nan, score.paper) for score in compared.scores}


def test_a_row_of_foreground_classes_is_compared_with_foreground_classes(tmp_path: Path) -> None:
    found = cells("mib", Run.read(write_result(tmp_path / "run", PROTOCOL, "mib", by_channel)))
    assert list(found) == ["1-15", "16-20", "all w/o bg", "all+bg"]
    assert found["1-15"] == pytest.approx((0.5, 71.8))
    assert found["16-20"] == pytest.approx((0.3, 43.3))
    assert found["all w/o bg"] == pytest.approx((0.45, 64.7))
    assert found["all+bg"] == pytest.approx((9.9 / 21, math.nan), nan_ok=True)


def test_a_row_that_counts_background_among_the_old_classes_is_compared_so(tmp_path: Path) -> None:
    found = cells("sdr", Run.read(write_result(tmp_path / "run", PROTOCOL, "sdr", by_channel)))
    assert list(found) == ["1-15", "1-15+bg", "16-20", "all w/o bg", "all+bg"]
    assert found["1-15+bg"] == pytest.approx((8.4 / 16, 73.5))
    assert found["all+bg"] == pytest.approx((9.9 / 21, 67.2))
    assert math.isnan(found["1-15"][1])
    assert math.isnan(found["all w/o bg"][1])


def test_a_row_may_count_background_in_all_alone(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "run", "voc/10-1/overlapped", "mib+ucd", by_channel)
    found = cells("mib+ucd", Run.read(folder), "voc-10")
    assert found["1-10"][1] == 33.7
    assert found["all+bg"][1] == 31.1
    assert math.isnan(found["all w/o bg"][1])


def test_what_is_no_score_is_the_papers_alone(tmp_path: Path) -> None:
    found = cells(
        "chosen", Run.read(write_result(tmp_path / "a", PROTOCOL, "mib+ucd", by_channel)), "ablation-contrast"
    )
    assert found["Memory"][1] == 41.8
    assert math.isnan(found["Memory"][0])
    assert found["mIoU w/o bg"] == pytest.approx((0.45, 66.3))


def test_groups_of_every_step_are_those_of_the_paper(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "run", "ade20k/100-10/disjoint", "mib", lambda _, channel: channel / 1000)
    found = cells("mib", Run.read(folder), "ade-disjoint")
    assert found["100-110"] == pytest.approx((sum(range(101, 111)) / 10_000, 10.4))


def test_seeds_become_mean_deviation_and_difference(tmp_path: Path) -> None:
    folders = [
        write_result(tmp_path / "42", PROTOCOL, "mib", lambda _, __: 0.6, seed=42),
        write_result(tmp_path / "43", PROTOCOL, "mib", lambda _, __: 0.7, seed=43),
    ]
    runs = [Run.read(folder) for folder in folders]
    table = read_table("voc-main")
    shown = as_table("title", compare(table, table.block(PROTOCOL), {"mib": runs, "ft": []}))
    assert shown.rows == [
        ["FT", "paper", "1.1", "33.6", "9.2", "–"],
        ["MiB", "ours (2)", "65.0 ± 7.1", "65.0 ± 7.1", "65.0 ± 7.1", "65.0 ± 7.1"],
        ["", "paper", "71.8", "43.3", "64.7", "–"],
        ["", "Δ", "−6.8", "+21.7", "+0.3", "–"],
    ]
    assert shown.note == SCORED


def test_two_digits_where_the_paper_prints_two(tmp_path: Path) -> None:
    run = Run.read(write_result(tmp_path / "run", "ade20k/50-50/overlapped", "mib", by_channel))
    table = read_table("ade-overlapped")
    rows = as_table("", compare(table, table.block(run.protocol), {"mib": [run]})).rows
    assert [row[2:] for row in rows if row[1] == "paper"] == [["–", "45.57", "21.01", "–", "29.31"]]


def test_another_recipe_than_the_papers_is_said(tmp_path: Path) -> None:
    overrides = {"optim": {"epochs": 1}, "model": {"encoder": "resnet18"}}
    run = Run.read(write_result(tmp_path / "run", PROTOCOL, "mib", by_channel, overrides=overrides))
    (table,) = beside_the_paper([run])
    assert table.note == (
        f"{SCORED}\nMiB: not the published recipe: model.encoder resnet18 (published: resnet101), "
        "optim.epochs 1 (published: 30)"
    )


def test_whole_images_are_not_what_the_paper_scores(tmp_path: Path) -> None:
    whole = {"data": {"scoring": "full"}}
    run = Run.read(write_result(tmp_path / "run", "cityscapes/13-6/overlapped", "mib", by_channel, overrides=whole))
    (table,) = beside_the_paper([run])
    assert table.note == (
        "scored: full (whole images), classes to come ignored, unlabelled pixels as background, only images with a "
        "class learnt so far, 1449 images\nMiB: not the published recipe: data.scoring full (published: paper)"
    )


def test_images_are_compared_with_the_published_numbers(tmp_path: Path) -> None:
    """Published lists are the recipe, wherever they lie; other images are not."""
    given = {"data": {"splits": "lists"}}
    folder = write_result(tmp_path / "run", PROTOCOL, "mib", by_channel, overrides=given)
    (table,) = beside_the_paper([Run.read(folder)])
    assert table.note == SCORED
    result = json.loads((folder / "result.json").read_text())
    result["steps"][0]["training_images"] = 8436
    (folder / "result.json").write_text(json.dumps(result))
    (table,) = beside_the_paper([Run.read(folder)])
    assert table.note == f"{SCORED}\nMiB: not the published images: 8436 in step 0 (published: 8437)"


def test_order_b_is_a_published_recipe_too(tmp_path: Path) -> None:
    protocol, order = "ade20k/100-50/disjoint", {"data": {"class_order": ["b"]}}
    run = Run.read(write_result(tmp_path / "run", protocol, "mib", by_channel, overrides=order))
    (table,) = beside_the_paper([run])
    assert table.note == SCORED


def test_a_run_finds_its_row_in_the_paper(tmp_path: Path) -> None:
    cold = {"ucd": {"temperature": 0.01}}
    folders = [
        write_result(tmp_path / "a", PROTOCOL, "mib+ucd", by_channel),
        write_result(tmp_path / "b", PROTOCOL, "mib+ucd", by_channel, overrides=cold),
        write_result(tmp_path / "c", PROTOCOL, "dft", by_channel),
        write_result(tmp_path / "d", "voc/offline/overlapped", "ft", by_channel),
    ]
    main, temperature = beside_the_paper([Run.read(folder) for folder in folders])
    assert main.title == f"{PROTOCOL} beside Table 1 of the paper (mIoU, %)"
    assert [row[0] for row in main.rows if row[0]] == ["MiB+UCD", "Joint"]
    assert [row[0] for row in temperature.rows if row[0]] == ["0.01"]
    assert main.note == SCORED
    assert temperature.note == SCORED


def test_variants_of_a_method_are_not_averaged_with_it(tmp_path: Path) -> None:
    folders = [
        write_result(tmp_path / "a", PROTOCOL, "mib+ucd", by_channel, seed=42),
        write_result(tmp_path / "b", PROTOCOL, "mib+ucd", by_channel, seed=43),
        write_result(tmp_path / "c", PROTOCOL, "mib+ucd", lambda *_: 0.0, overrides={"ucd": {"temperature": 0.3}}),
    ]
    (table,) = beside_the_paper([Run.read(folder) for folder in folders])
    assert table.rows[0][:2] == ["MiB+UCD", "ours (2)"]
    assert table.note == SCORED
    (table,) = beside_the_paper([Run.read(folders[2])])  # alone it is better than nothing
    assert table.note == f"{SCORED}\nMiB+UCD: not the published recipe: ucd.temperature 0.3 (published: default)"


def test_a_run_half_way_or_of_another_protocol_has_nothing_beside_it(tmp_path: Path) -> None:
    half = write_result(tmp_path / "half", "voc/15-1/disjoint", "mib", by_channel, steps=3)
    assert beside_the_paper([Run.read(half)]) == []
    other = write_result(tmp_path / "other", "voc/12-8/disjoint", "mib", by_channel)
    assert beside_the_paper([Run.read(other)]) == []
