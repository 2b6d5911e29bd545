"""A small model with random weights, as a file and as the folder of a run."""

from pathlib import Path

import pytest
import torch

from incseg.deploy.model import Model
from incseg.models import Architecture, Segmenter
from incseg.models.storage import save_model
from incseg.run_folder import RunFolder

SMALL = Architecture(encoder="test_resnet", decoder="deeplabv3plus", decoder_options={"decoder_channels": 16})
CLASSES = ("background", "disc", "square", "triangle", "cross")


def decided(segmenter: Segmenter) -> Segmenter:
    """Random weights hardly tell classes apart; scaled up they see several in any image."""
    with torch.no_grad():
        for parameter in segmenter.classifier.parameters():
            parameter.mul_(50)
    return segmenter.eval()


@pytest.fixture(scope="session")
def tiny_model() -> Model:
    torch.manual_seed(0)
    return Model(decided(Segmenter(SMALL, [3, 2])), CLASSES)


@pytest.fixture
def tiny_run(tiny_model: Model, tmp_path: Path) -> Path:
    """A run of two finished steps and a third whose model is written but not yet scored."""
    run = RunFolder(tmp_path / "run")
    first = decided(Segmenter(SMALL, [3]))
    for index, (segmenter, classes) in enumerate([(first, CLASSES[:3]), (tiny_model.segmenter, CLASSES)]):
        save_model(segmenter, classes, run.model(index))
        run.complete_step(index, {}, {"step": index})
    save_model(first, CLASSES[:3], run.model(2))
    return run.path
