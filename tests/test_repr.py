"""What is printed of an object in a notebook: one line that says what a person wants to know."""

from pathlib import Path

import numpy as np
import pytest
import torch

from incseg import methods
from incseg.config import RunConfig, load_recipe
from incseg.datasets import open_source
from incseg.deploy.model import Model, open_model
from incseg.deploy.prediction import Prediction
from incseg.models.closed_form import FeatureLayout, Statistics
from incseg.protocol import Protocol
from incseg.results import Run
from sample_runs import write_run


def test_a_model_is_one_line_however_large(tiny_model: Model, tiny_run: Path) -> None:
    whole = (
        "Model(4 classes and background: disc, square, triangle, cross; test_resnet deeplabv3plus, softmax head, on cpu"
    )
    assert repr(tiny_model) == f"{whole})"
    assert repr(open_model(tiny_run, device="cpu")) == f"{whole}, from {tiny_run}/step-1/model.safetensors)"
    many = Model(tiny_model.segmenter, ("background", *(f"class {index}" for index in range(150))))
    assert repr(many).startswith("Model(150 classes and background: class 0, class 1, ")
    assert len(repr(many)) < 160


def test_a_prediction_says_what_covers_most() -> None:
    ids = np.zeros((4, 10), np.uint8)
    ids[0], ids[1, 0] = 2, 1
    classes = ("background", "cat", "dog", "cow")
    assert repr(Prediction(np.zeros((4, 10, 3), np.uint8), ids, classes)) == (
        "Prediction(10×4: background 72.5 %, dog 25.0 %, cat 2.5 %)"
    )
    many = Prediction(np.zeros((1, 40, 3), np.uint8), np.arange(40, dtype=np.uint8)[None], tuple(map(str, range(40))))
    assert repr(many).endswith(", and 36 more)")


def test_statistics_dump_no_tensor() -> None:
    statistics = Statistics.empty(FeatureLayout(channels=(4,), strides=(16,), width=8))
    known = statistics.with_classes(torch.tensor([1000.0, 234.0]))
    assert repr(known) == "Statistics(2 channels, 8 features, 1,234 cells of 16×16 pixels)"


def test_settings_show_what_is_not_the_default() -> None:
    config = load_recipe("shapes/4-2/overlapped", {"optim": {"epochs": 3}})
    assert repr(config.optim).startswith("OptimConfig(epochs=3")
    assert "seed=42" in repr(config)
    assert repr(RunConfig(protocol="voc/15-5/overlapped", method="ft")) == (
        "RunConfig(protocol='voc/15-5/overlapped', method='ft', seed=42)"
    )
    assert repr(RunConfig(protocol="voc/15-5/overlapped").data) == "DataConfig()"


@pytest.mark.parametrize("name", ["mib+ucd", "plop"])
def test_a_method_names_its_parts(name: str) -> None:
    method = methods.parse(name)
    assert repr(method) == f"Method({name}: {', '.join(type(part).__name__ for part in method.parts)})"
    assert repr(methods.mib() + methods.ucd()).startswith("MethodSum(mib+ucd: UnbiasedCrossEntropy, ")


def test_protocols_data_and_runs_are_one_line(tiny_folder: Path, tmp_path: Path) -> None:
    assert repr(Protocol.parse("voc/15-5")) == "Protocol('voc/15-5/overlapped')"
    assert repr(open_source("folder", tiny_folder)) == (
        "Source(data: 4 classes and background, 24 images to train on, 8 to score on)"
    )
    run = Run.read(write_run(tmp_path / "run", "mib"))
    assert repr(run) == f"Run({tmp_path}/run: mib on folder/2-2/overlapped, seed 1, 2 steps)"
