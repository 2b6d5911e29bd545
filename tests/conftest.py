"""What several tests share: a small folder dataset, quick settings, and the real data where it is at hand."""

import gc
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from command_line import InThisProcess
from incseg.batch import Batch
from incseg.config import RunConfig, load_recipe
from incseg.datasets import shapes
from incseg.deploy.export import export
from incseg.deploy.model import Model
from incseg.engine.assembly import train
from incseg.engine.checkpoint import FinishedStep
from incseg.models import Architecture, Segmenter
from incseg.models.closed_form import Statistics
from incseg.models.gather import Fit, feature_layout, gather, solved_head
from incseg.models.storage import save_model
from incseg.models.tensor_file import write_tensors
from incseg.run_folder import RunFolder
from samples import fewer_shapes, write_folder

SHARED = Path(__file__).parents[2] / "shared"

torch.set_num_threads(1)  # several test processes on few cores: more threads would only fight


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests the ids by which pytest-xdist groups them.

    Version 3.8 writes them where pytest reads no ids since 9.2: without this, ``--dist loadgroup`` groups nothing, and
    what a group shares (trained runs, an ONNX file, a server of processes) is made in every process.
    """
    for item in items:
        grouped = vars(item).get("_nodeid")
        if grouped and grouped != item.nodeid:
            item._id = type(item._id).parse(grouped)


def pytest_collection_finish() -> None:
    """Let Python's collector pass over what lives to the end: looking at a million objects takes it half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what incseg caches for a user out of that user's cache."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _nothing_is_imported_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most studies here are refused, or run in this process."""
    monkeypatch.setattr("incseg.study.children.import_ahead", lambda _: None)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny") / "data", train=24, val=8)


@pytest.fixture
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The embedded dataset with a tenth of its images."""
    for name in ("TRAIN_IMAGES", "VAL_IMAGES"):
        monkeypatch.setattr(shapes, name, getattr(shapes, name))  # put back afterwards
    fewer_shapes()
    yield
    shapes._source.cache_clear()


@pytest.fixture(scope="session")
def quick_config(tiny_folder: Path) -> Callable[..., RunConfig]:
    """A configuration whose steps take about a second."""

    def make(method: str = "ft", task: str = "2-2", **overrides: Any) -> RunConfig:
        return load_recipe(
            f"folder/{task}/overlapped",
            {
                "method": method,
                "data": {"root": tiny_folder, "crop_size": 32, "workers": 0},
                "model": {"encoder": "test_resnet", "decoder": "deeplabv3plus", "weights": "none",
                          "decoder_options": {"decoder_channels": 16}},
                "optim": {"epochs": 2, "batch_size": 4, "learning_rate": 0.05, "incremental_learning_rate": 0.02},
                "engine": {"accelerator": "cpu", "log_every": 1, "pictures": 2},
                **overrides,
            },
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def solved_base(quick_config: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, which knows disc, square, triangle and cross and carries statistics; not to be changed.

    It began with weights from a file, so it keeps its encoder as it was before training.
    """
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    write_tensors(folder / "encoder.safetensors", Segmenter(SMALL, [1]).encoder.state_dict())
    config = quick_config("ft", task="offline")
    network = config.model.model_copy(update={"weights": str(folder / "encoder.safetensors")})
    train(config.model_copy(update={"model": network}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def voc_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = SHARED / "data" / "voc-tiny.zip"
    if not archive.exists():
        pytest.skip("the small VOC archive (shared/data/voc-tiny.zip) is not beside this checkout")
    root = tmp_path_factory.mktemp("voc")
    with zipfile.ZipFile(archive) as file:
        file.extractall(root)
    return root


@pytest.fixture(scope="session")
def paper_source() -> str:
    path = SHARED / "paper" / "ucd.tex"
    if not path.exists():
        pytest.skip("the paper's source (shared/paper/ucd.tex) is not beside this checkout")
    return path.read_text(encoding="utf-8")


@pytest.fixture
def shared_weights() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        path = SHARED / "weights" / name
        if not path.exists():
            pytest.skip(f"the pretrained weights (shared/weights/{name}) are not beside this checkout")
        return path

    return find


SMALL = Architecture(encoder="test_resnet", decoder="deeplabv3plus", decoder_options={"decoder_channels": 16})
CLASSES = ("background", "disc", "square", "triangle", "cross")


def decided(segmenter: Segmenter) -> Segmenter:
    """Random weights hardly tell classes apart; scaled up, and without biases, they see several in any image."""
    with torch.no_grad():
        for name, parameter in segmenter.classifier.named_parameters():
            parameter.mul_(0 if name.endswith("bias") else 50)
    return segmenter.eval()


def coloured_patches(batch: int, channels: int, height: int, width: int) -> Tensor:
    """(B, 3, H, W) uint8: squares of 16 pixels, each of a colour of its own."""
    generator = torch.Generator().manual_seed(0)
    size = (batch, channels, -(-height // 16), -(-width // 16))
    coarse = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
    return coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)[..., :height, :width].contiguous()


def solved(segmenter: Segmenter, stride: int = 16) -> Segmenter:
    """With a closed-form head that was shown coloured patches, the class of each by its brightness."""
    classes = segmenter.classifier.head_sizes[0]
    images = coloured_patches(8, 3, 128, 128)
    labels = (images.float().mean(dim=1) / 256 * classes).long()
    layout = feature_layout(segmenter, classes, width=64, stride=stride, context=3)
    counts = torch.bincount(labels.flatten()).double()
    statistics = gather(segmenter, Statistics.empty(layout).with_classes(counts), [Batch(images, labels)], Fit())
    segmenter.use_head(solved_head(statistics, [classes], ridge=1.0))
    return segmenter.eval()


@pytest.fixture(scope="session")
def tiny_model() -> Model:
    torch.manual_seed(0)
    return Model(decided(Segmenter(SMALL, [3, 2])), CLASSES)


@pytest.fixture(scope="session")
def tiny_onnx(tiny_model: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The model as an ONNX file, and how far its logits are from PyTorch's.

    Exporting takes many seconds: tests that take it belong to one xdist group, "onnx".
    """
    out = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return out, export(tiny_model, out)


@pytest.fixture
def group_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process in a group of its own, whose messages go through gloo on a CPU and through NCCL on a GPU."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    backends = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(
        backends, init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> InThisProcess:
    runner = InThisProcess()
    monkeypatch.setattr("incseg.study.children.Children.start", lambda _, *given: runner.start(*given))
    monkeypatch.setenv("COLUMNS", "160")
    return runner


@pytest.fixture
def tiny_run(tiny_model: Model, tmp_path: Path) -> Path:
    """A run of two finished steps and a third whose model is written but not yet scored."""
    run = RunFolder(tmp_path / "run")
    first = decided(Segmenter(SMALL, [3]))
    for index, (segmenter, classes) in enumerate([(first, CLASSES[:3]), (tiny_model.segmenter, CLASSES)]):
        save_model(segmenter, classes, run.model(index))
        FinishedStep({}, {"step": index}).save(run, index)
    save_model(decided(Segmenter(SMALL, [3, 1])), CLASSES[:4], run.model(2))
    return run.path
