import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from command_line import run
from incseg.config import DataConfig
from incseg.console import Console
from incseg.curriculum import Extension
from incseg.datasets import open_source
from incseg.engine.agreement import Comparison
from incseg.models import Architecture, Segmenter
from incseg.report.page import write_report
from incseg.results import Run
from samples import write_classes, write_pair

KNOWN = ("background", "disc", "square")


class Recites(nn.Module):
    """Answers with a class per stripe of two pixels, whatever it is shown."""

    mean, architecture = torch.zeros(1), Architecture()

    def __init__(self, *stripes: int):
        super().__init__()
        self.ids = torch.tensor(stripes).repeat_interleave(2)

    def forward(self, images: Tensor) -> Tensor:
        return self.ids.to(torch.uint8).expand(len(images), *images.shape[-2:])


def compared(folder: Path, before: Recites, after: Recites, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    monkeypatch.setattr("incseg.engine.agreement.predict_ids", lambda model, images: model(images))
    extension = Extension(open_source("folder", folder), DataConfig(known=KNOWN))
    return Comparison(cast(Segmenter, before), cast(Segmenter, after), extension)


@pytest.fixture
def striped(tmp_path: Path) -> Path:
    """Six stripes: the third is labelled with the new class, the last is unlabelled."""
    for index in range(3):
        write_pair(tmp_path / f"new/images/{index}.png", tmp_path / f"new/masks/{index}.png", [0, 0, 1, 0, 0, 255])
    (tmp_path / "new" / "classes.txt").write_text("background\nring\n")
    (tmp_path / "new" / "val.txt").write_text("2\n")
    return tmp_path / "new"


def test_agreement_is_iou_of_the_two_maps_where_no_new_class_is_labelled(
    striped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: the third stripe is left out; disc is kept on 1 of 2 stripes and square on 1, and gained by another."""
    old, new = Recites(0, 1, 1, 1, 2, 0), Recites(0, 1, 3, 3, 2, 2)
    comparison = compared(striped, old, new, monkeypatch)
    found = comparison.measure(Console(quiet=True))
    assert found["classes"] == {"background": 1 / 2, "disc": 1 / 2, "square": 1 / 2}
    assert found["shares"] == pytest.approx({"background": 2 / 5, "disc": 2 / 5, "square": 1 / 5})
    assert (found["mean"], found["images"], found["held_out"]) == (1 / 2, 1, True)
    comparison.save_pictures(tmp_path / "pictures", 4, "distinct")
    before, after = (np.asarray(Image.open(tmp_path / "pictures" / f"00-2.{name}.png")) for name in ("before", "after"))
    assert before[0].tolist() == [0, 0, 1, 1, 255, 255, 1, 1, 2, 2, 0, 0]
    assert after[0].tolist() == new.ids.tolist()


def test_what_the_old_model_never_sees_does_not_count(striped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same, nothing = Recites(0, 1, 1, 1, 0, 0), Recites(0, 0, 0, 0, 0, 0)
    found = compared(striped, same, same, monkeypatch).measure(Console(quiet=True))
    assert found["classes"] == {"background": 1.0, "disc": 1.0, "square": None}
    assert found["mean"] == 1.0
    assert compared(striped, nothing, nothing, monkeypatch).measure(Console(quiet=True))["mean"] is None


def test_an_extension_says_how_far_it_agrees(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write_classes(tmp_path / "new", ["ring"], images=10)
    words = ("extend", tiny_run, "--data", new, "--out", tmp_path / "out", "--data.workers", "0", "--optim.epochs", "1",
             "--engine.accelerator", "cpu", "--optim.batch-size", "4", "--data.crop-size", "32")  # fmt: skip
    assert run(*words, "--min-agreement", "100") == 1
    shown, failed = capsys.readouterr()
    assert "agreement with the model before (%)" in shown
    assert "below --min-agreement 100; it is kept in" in failed
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(result["agreement"]["classes"]) == {"background", "disc", "square", "triangle", "cross"}
    assert 0 < result["agreement"]["mean"] < 1
    assert run(*words, "--min-agreement", "0") == 0, "run again, it is not measured anew"
    assert Run.read(tmp_path / "out").agreement == result["agreement"]
    assert run(*words, "--min-agreement", "101") == 2
    write_report([tmp_path / "out"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "agreement with the model before" in page
    assert page.count("classes of the extended model") == len(list((tmp_path / "out" / "agreement").glob("*.jpg")))
    assert "classes of the extended model" in page
