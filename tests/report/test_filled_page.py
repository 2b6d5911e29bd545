"""Records of runs, and the pages that are made from them."""

import json
import math
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from command_line import run
from incseg.results import Run
from made_up import write_result

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "results"
PROTOCOL = "voc/15-5/overlapped"
BETTER = {"ft": 0.1, "mib": 0.5}


def finished_runs(folder: Path, *, measured: bool = True) -> Path:
    """Two methods with two seeds; step 0 takes 60 seconds, step 1 120 to learn; each leaves a model of 2 MB."""
    for method, old in BETTER.items():
        for seed in (42, 43):

            def iou(_: int, channel: int, old: float = old, seed: int = seed) -> float:
                return 0.9 if channel == 0 else 0.4 if channel > 15 else old + (seed - 42) * 0.1

            place = write_result(folder / f"{method}-{seed}", PROTOCOL, method, iou, seed=seed,
                                 overrides={"model": {"weights": "/home/someone/net.pth"}})  # fmt: skip
            for step in (0, 1) if measured else ():
                (place / f"step-{step}").mkdir()
                times = {"seconds": 132.0, "scoring_seconds": 12.0} if step else {"seconds": 60.0}  # from before
                cost = {**times, "model_bytes": 2_000_000, "memory_bytes": 500_000 * step}
                (place / f"step-{step}" / "cost.json").write_text(json.dumps(cost))
    return folder


def cells(text: str, method: str) -> dict[str, str]:
    """A row of the first table of a page."""
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return dict(zip(rows[0], next(row for row in rows if row[0] == method), strict=True))


def test_a_leaderboard_of_runs_is_that_of_their_records(tmp_path: Path) -> None:
    runs = finished_runs(tmp_path / "runs")
    assert run("results", "collect", runs, "--out", tmp_path / "records") == 0
    for source in ("runs", "records", "runs/*/result.json"):
        assert run("results", "leaderboard", tmp_path / source, "--out", tmp_path / f"{len(source)}.md") == 0
    text, *others = (page.read_text() for page in tmp_path.glob("*.md"))
    assert others == [text, text]
    row = cells(text, "mib")
    old, spread = 100 * statistics.fmean([0.5, 0.6]), 100 * statistics.stdev([0.5, 0.6])
    assert row["old"] == f"{old:.1f} ± {spread:.1f}"
    assert row["new"] == "40.0 ± 0.0"
    every = [(0.9 + 15 * value + 5 * 0.4) / 21 for value in (0.5, 0.6)]
    assert row["all+bg"] == f"{100 * statistics.fmean(every):.1f} ± {100 * statistics.stdev(every):.1f}"
    assert row["old+bg"] == f"{100 * statistics.fmean([(0.9 + 15 * v) / 16 for v in (0.5, 0.6)]):.1f} ± 6.6"
    assert (row["minutes"], row["kept (MB)"], row["seeds"]) == ("1.0 + 2.0", "2.0 + 0.5", "42, 43")
    assert text.index("| mib |") < text.index("| ft |")  # the best one first


def test_a_record_holds_what_gives_the_run_and_nothing_of_the_machine(tmp_path: Path) -> None:
    runs = finished_runs(tmp_path / "runs", measured=False)
    assert run("results", "collect", runs, "--out", tmp_path / "records") == 0
    first, *others = sorted((tmp_path / "records").rglob("*"))
    assert first.name == "voc-15-5-overlapped"
    assert len(others) == 4
    record = Run.read(others[0])
    assert record.result["command"] == (f"incseg train {PROTOCOL} --method ft --seed 42 --model.weights net.pth")
    assert "/home" not in others[0].read_text()
    assert "confusion" not in record.steps[0]
    assert record.miou(-1) == Run.read(runs / "ft-42").miou(-1)
    others[0].write_text(others[0].read_text().replace("0.9", "0.95"))
    assert run("results", "leaderboard", tmp_path / "records", "--out", tmp_path / "page.md") == 2  # changed by hand


def test_the_numbers_of_a_page_are_replaced_and_its_text_is_kept(tmp_path: Path) -> None:
    runs = finished_runs(tmp_path / "runs")
    page = tmp_path / "page.md"
    page.write_text(
        "# Ours\n\nText before.\n\n"
        f"<!-- incseg: scores {PROTOCOL} mib -->\nold numbers\n<!-- /incseg -->\n\nText between.\n\n"
        + "\n".join(f"<!-- incseg: {kind} {PROTOCOL} -->\n<!-- /incseg -->\n" for kind in ("paper", "steps", "old-new"))
    )
    assert run("results", "page", runs, "--out", page) == 0
    text = page.read_text()
    assert "Text before." in text
    assert "Text between." in text
    assert "old numbers" not in text
    assert "difference from mib" in text
    paper = text[text.index("incseg: paper") :]
    assert "beside Table 1 of the paper" in paper
    assert "| MiB | ours (2) | 55.0 ± 7.1 |" in paper
    assert cells(paper, "")[""] == "paper"
    points = {}
    for kind in ("steps", "old-new"):
        svg = ET.parse(tmp_path / "images" / f"results-voc-15-5-overlapped-{kind}.svg").getroot()
        points[kind] = [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert points["old-new"] == ["ft, mIoU of the classes of step 0 (%) 15: 40.0",
                                 "mib, mIoU of the classes of step 0 (%) 55: 40.0"]  # fmt: skip
    assert points["steps"][1] == f"mib, after step 1: {100 * (0.9 + 15 * 0.55 + 2) / 21:.1f}"
    assert run("results", "page", runs, "--out", page) == 0
    assert page.read_text() == text
    assert run("results", "page", runs, "--out", tmp_path / "new.md") == 0  # begun with all there is
    assert (tmp_path / "new.md").read_text().endswith(paper)


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("no marks", "the page has no place for numbers"),
        ("<!-- incseg: scoers x -->\n<!-- /incseg -->", "Did you mean 'scores'?"),
        ("<!-- incseg: scores voc/10-1/disjoint -->\n<!-- /incseg -->", "none of the records is of that protocol"),
    ],
)
def test_a_page_that_cannot_be_filled_is_left_alone(
    mark: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(mark)
    assert run("results", "page", finished_runs(tmp_path / "runs"), "--out", page) == 2
    assert message in capsys.readouterr().err
    assert page.read_text() == mark


def test_what_is_no_result_is_refused_and_what_is_not_finished_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.md"
    assert run("results", "leaderboard", "--out", out) == 2
    assert run("results", "leaderboard", tmp_path, "--out", out) == 2
    assert "holds neither runs nor records" in capsys.readouterr().err
    write_result(tmp_path / "half", PROTOCOL, "ft", lambda *_: 0.5, steps=1)
    assert run("results", "leaderboard", tmp_path, "--out", out) == 2
    assert "none of the runs is finished" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("command", "page"), [("leaderboard", "leaderboard.md"), ("page", "results.md")])
def test_the_committed_pages_are_what_the_command_makes(command: str, page: str, tmp_path: Path) -> None:
    committed = ROOT / "docs" / page
    (tmp_path / page).write_text(committed.read_text(encoding="utf-8"), encoding="utf-8")
    assert run("results", command, RECORDS, "--out", tmp_path / page) == 0
    assert (tmp_path / page).read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
    for picture in (tmp_path / "images").glob("*") if (tmp_path / "images").is_dir() else ():
        assert picture.read_text() == (ROOT / "docs" / "images" / picture.name).read_text()
    assert math.isfinite(Run.read(next(RECORDS.rglob("*.record.json"))).miou(-1))
