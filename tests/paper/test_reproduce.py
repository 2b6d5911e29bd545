"""`incseg reproduce` from the command line to the numbers, on the small VOC."""

import csv
import json
import re
import shutil
import statistics
from multiprocessing import forkserver
from pathlib import Path

import pytest
from PIL import Image

from command_line import InThisProcess
from incseg import cli

QUICK = ["--model.encoder", "test_resnet", "--model.decoder", "deeplabv3plus", "--model.weights", "none",
         "--data.crop-size", "64", "--data.workers", "0", "--optim.epochs", "1", "--optim.batch-size", "8",
         "--engine.accelerator", "cpu", "--engine.pictures", "0"]  # fmt: skip


def all_with_background(folder: Path) -> float:
    """Mean IoU of all 21 classes in percent, from the confusion matrix alone."""
    confusion = json.loads((folder / "result.json").read_text())["steps"][-1]["confusion"]
    columns = list(zip(*confusion, strict=True))
    unions = [sum(confusion[c]) + sum(columns[c]) - confusion[c][c] for c in range(21)]
    return statistics.fmean(100 * confusion[c][c] / unions[c] for c in range(21) if unions[c])


def test_a_table_survives_a_failing_run_skips_what_is_done_and_is_compared(
    voc_tiny: Path, tmp_path: Path, processes: InThisProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "1", "--columns", "19-1/disjoint", "--rows", "mib", "mib+ucd", "Joint", "--seeds", "2",
                 "--data-root", str(voc_tiny), "--out", str(tmp_path / "out"), *QUICK]  # fmt: skip
    runs = tmp_path / "out" / "voc-19-1-disjoint"
    runs.mkdir(parents=True)
    blocker = runs / "mib-seed42"
    blocker.write_text("a file where the folder of the first run should be")

    assert cli.main(arguments) == 1
    said = capsys.readouterr().err
    assert "mib-seed42 cannot be used as a folder" in said
    assert "1 of 6 runs failed" in said
    assert str(blocker) in said
    first = ["mib-seed42", "mib-seed43", "ft-seed42", "ft-seed43"]
    assert processes.folders() == [*first, "mib+ucd-seed42", "mib+ucd-seed43"]

    blocker.unlink()
    processes.commands.clear()
    assert cli.main(arguments) == 0
    assert processes.folders() == ["mib-seed42"]  # all that was left to do
    for seed in ("42", "43"):  # one step 0 per seed, whoever learnt it
        files = [runs / f"{method}-seed{seed}" / "step-0" / "model.safetensors" for method in ("mib", "mib+ucd")]
        assert files[0].read_bytes() == files[1].read_bytes()

    capsys.readouterr()
    processes.commands.clear()
    assert cli.main(arguments) == 0
    assert processes.commands == []
    shown = capsys.readouterr().out
    words = " ".join(shown.split())
    values = [all_with_background(runs / f"mib-seed{seed}") for seed in (42, 43)]
    mean, std = statistics.fmean(values), statistics.stdev(values)
    (line,) = [text for text in shown.splitlines() if "MiB " in text]
    assert re.findall(r"[\d.]+ ± [\d.]+", line)[-1] == f"{mean:.1f} ± {std:.1f}"
    assert "69.6" in shown
    assert "MiB, MiB+UCD, Joint: not the published recipe: data.crop_size 64 (published: 512)" in words

    with (tmp_path / "out" / "voc-main.csv").open() as file:
        records = {(record["row"], record["group"]): record for record in csv.DictReader(file)}
    assert len(records) == 3 * 4
    number = len(next(voc_tiny.rglob("val.txt")).read_text().split())
    line = r"scored: paper \(the middle square at 64 pixels\), classes to come as background, .*"
    assert all(re.fullmatch(rf"{line}, {number} images", record["scored"]) for record in records.values())
    assert "MiB, MiB+UCD: not the published images: " in words
    assert float(records["MiB", "all+bg"]["mean"]) == pytest.approx(mean, abs=0.006)
    assert float(records["MiB", "all+bg"]["std"]) == pytest.approx(std, abs=0.006)
    assert float((mine := records["MiB", "all w/o bg"])["paper"]) == 67.4
    assert float(mine["difference"]) == pytest.approx(float(mine["mean"]) - 67.4, abs=0.011)
    offline = [all_with_background(tmp_path / "out" / "voc-offline-overlapped" / f"ft-seed{s}") for s in (42, 43)]
    assert float(records["Joint", "all+bg"]["mean"]) == pytest.approx(statistics.fmean(offline), abs=0.006)
    plots = [tmp_path / "out" / f"voc-main-voc-19-1-disjoint-steps.{ending}" for ending in ("png", "svg")]
    assert all(plot.stat().st_size > 5000 for plot in plots)

    assert cli.main([*arguments, "--dry-run"]) == 0
    summary, *deviations = capsys.readouterr().out.splitlines()
    assert summary == "# Pascal VOC 2012: 19-1, 15-5 and 15-1: 6 of 6 runs done"
    assert "# not the published recipe: optim.epochs 1 (published: 30)" in deviations
    assert all(line.startswith("#") for line in deviations)  # nothing is left to run


def test_every_run_is_a_process(voc_tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # one that a test before began speaks elsewhere
    arguments = ["reproduce", "ablation-weight", "--columns", "19-1", "--rows", "0", "--data-root", str(voc_tiny)]
    assert cli.main([*arguments, "--out", str(tmp_path), *QUICK, "--optim.batch-size", "1"]) == 1
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith("incseg: optim.batch_size 1 cannot be shared by 1 device(s)")  # the run itself speaks
    assert "1 of 1 runs failed" in said[1]
    assert not (tmp_path / "ablation-weight.png").exists()  # there is nothing to plot


def test_bad_data_is_said_once_before_anything_runs(
    voc_tiny: Path, tmp_path: Path, processes: InThisProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(voc_tiny, tmp_path / "voc"))
    mask = sorted(root.rglob("SegmentationClassAug/*.png"))[0]
    Image.new("RGB", Image.open(mask).size, "red").save(mask)
    arguments = ["reproduce", "1", "--columns", "19-1", "--rows", "ft", "mib", "--data-root", str(root)]
    assert cli.main([*arguments, "--out", str(tmp_path / "out"), *QUICK]) == 2
    said = capsys.readouterr()
    assert f"{mask.name} holds RGB colours" in said.err
    assert said.err.count("\n") == 1
    assert "voc: " in said.out
    assert "of the published 10582 training images" in said.out
    assert not processes.commands
    assert not (tmp_path / "out").exists()


def test_missing_data_is_said_once_before_anything_runs(
    tmp_path: Path, processes: InThisProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["reproduce", "1", "--out", str(tmp_path / "out")]) == 2
    assert "needs its folder: give --data-root DIR" in capsys.readouterr().err
    assert not processes.commands
    assert not (tmp_path / "out").exists()
