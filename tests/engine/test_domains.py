"""Runs of a domain protocol: a head that does not grow, scores by domain, and methods that have no meaning there."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from incseg.batch import Batch
from incseg.config import RunConfig
from incseg.engine.assembly import train
from incseg.engine.rescore import rescore
from incseg.errors import InputError
from incseg.methods import method_names, parse
from incseg.models import Architecture, Segmenter
from incseg.models.storage import describe_model
from incseg.protocol import domain_steps
from incseg.report.page import write_report
from incseg.report.summary import per_step_table, read_runs, summary_table
from incseg.run_folder import RunFolder
from samples import context, into_subfolders, write_folder

NETWORK = Architecture(encoder="test_resnet", decoder="deeplabv3plus", decoder_options={"decoder_channels": 16})
REFUSED = {"dft", "dkd", "emseg", "ewf", "nest", "recall", "ssul", "star"}
Train = Callable[[str, Path], dict[str, Any]]


@pytest.mark.parametrize("name", [*method_names(), "mib+ucd", "plop+ucd", "mib+sdr"])
def test_every_method_has_finite_losses_in_a_step_without_new_classes_or_is_refused(name: str) -> None:
    steps, method = domain_steps("1-1", 4, 2), parse(name)
    classes = ("background", "disc", "square", "triangle", "cross")
    if name in REFUSED:
        with pytest.raises(InputError, match=f"'{name}' has no meaning where steps bring domains"):
            method.check(steps, classes)
        return
    method.check(steps, classes)
    torch.manual_seed(0)
    student, teacher = Segmenter(NETWORK, [5]), Segmenter(NETWORK, [5]).eval()
    labels = torch.randint(0, 5, (2, 64, 64))
    labels[:, :8] = 255
    batch = Batch(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8), labels)
    if method.solves:  # tests/methods/test_ridge.py
        return
    method.begin(context(steps[1], student, teacher, batches=lambda: [batch]))
    given = partial(Segmenter.forward, images=batch.images, with_stages=True, with_raw_stages=True)
    outputs = given(student)
    with torch.no_grad():
        view = method.view(batch, outputs, given(teacher), steps[1])
    terms = method.losses(view)
    assert all(torch.isfinite(term) for term in terms.values())
    assert terms["segmentation"] > 0
    assert torch.equal(view.targets, labels)  # complete labels leave nothing to guess


@pytest.fixture(scope="module")
def train_by_day(tmp_path_factory: pytest.TempPathFactory, quick_config: Callable[..., RunConfig]) -> Train:
    """Trains a method on a folder of day and then night, which is the same in negative colours."""
    root = into_subfolders(write_folder(tmp_path_factory.mktemp("domains") / "data", 16, 8), ("day", "night"))
    for path in (root / "images" / "night").iterdir():
        Image.fromarray(255 - np.asarray(Image.open(path).convert("RGB"))).save(path)
    usual = quick_config()
    data = usual.data.model_copy(update={"root": root, "has_background": False})
    shorter = usual.optim.model_copy(update={"epochs": 1})

    def run(method: str, out: Path) -> dict[str, Any]:
        update = {"protocol": "folder/1-1/domain", "method": method, "data": data, "optim": shorter}
        return train(usual.model_copy(update=update), out)

    return run


@pytest.mark.parametrize("method", ["ft", "mib+ucd", "plop", "joint", "analytic"])
def test_a_run_by_domain(method: str, train_by_day: Train, tmp_path: Path) -> None:
    result = train_by_day(method, tmp_path / "run")
    first, second = result["steps"]
    assert (len(first["new_classes"]), second["new_classes"]) == (4, [])
    assert (first["training_images"], second["training_images"]) == (8, 16 if method == "joint" else 8)
    assert (first["scored_images"], second["scored_images"]) == (4, 8)
    assert [group["names"] for group in second["domains"]] == [["day"], ["night"]]
    for step in (first, second):
        assert step["iou"]["background"] is None  # the data has none
        assert sum(row[0] for row in step["confusion"]) == 0  # so it is never predicted
    day, night = (group["miou"] for group in second["domains"])
    assert [second["miou"][key] for key in ("old", "new", "first", "later")] == [day, night, day, night]
    assert result["forgetting"]["mean"] == pytest.approx(first["domains"][0]["miou"] - day)
    assert describe_model(RunFolder(tmp_path / "run").model(1)).head_sizes == [5]
    if method == "ft":
        again = rescore(tmp_path / "run")
        assert again["steps"] == result["steps"]
        runs = read_runs([tmp_path / "run"])
        assert runs[0].scored == (
            "scored: full (whole images), data without background, images of the domains learnt so far, 8 images"
        )
        assert summary_table(runs).headers[1:3] == ["domains 1", "domains 2"]
        assert [row[0] for row in per_step_table(runs).rows] == ["0 (day)", "1 (+ night)"]
        write_report([tmp_path / "run"], tmp_path / "report.html")
        assert "domains of step 0" in (tmp_path / "report.html").read_text()
