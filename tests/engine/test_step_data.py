"""Saliency maps from their folder to the batches of a run."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from PIL import Image

from incseg.config import RunConfig
from incseg.console import Console
from incseg.datasets import open_source
from incseg.engine.assembly import build, train
from incseg.engine.image_cache import ImageCache
from incseg.errors import InputError
from incseg.loading import TrainingSet
from incseg.run_folder import RunFolder
from samples import write_folder, write_saliency

MakeConfig = Callable[..., RunConfig]


def salient_config(make: MakeConfig, maps: Path | None, method: str = "ssul", **data: object) -> RunConfig:
    config = make(method, optim={"epochs": 1, "batch_size": 4})
    return config.model_copy(update={"data": config.data.model_copy(update={"saliency": maps, **data})})


@pytest.fixture
def maps(tiny_folder: Path, tmp_path: Path) -> Path:
    """Those of a detector that finds class 3 of the dataset's four, and what is void."""
    return write_saliency(open_source("folder", tiny_folder).train, tmp_path / "maps", shown=(3, 255))


@pytest.fixture
def _cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageCache, "__post_init__", lambda _: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))


@pytest.mark.usefixtures("_cpu_as_gpu")
@pytest.mark.parametrize("void", ["ignore", "background"])
@pytest.mark.parametrize("cache", ["none", "ram", "gpu"])
@pytest.mark.parametrize("longest_side", [None, 48])
def test_maps_are_cropped_as_masks_are(
    cache: str, void: str, longest_side: int | None, quick_config: MakeConfig, maps: Path, tmp_path: Path
) -> None:
    """Salient is then what the same crop of the mask shows of these ids, as far as step 0 takes it for background."""
    config = salient_config(quick_config, maps, cache=cache, void=void, longest_side=longest_side)
    with_maps, without = (
        build(salient_config(lambda *_, **__: config, folder), tmp_path, Fabric(accelerator="cpu"))
        for folder in (maps, None)
    )
    first = with_maps.curriculum.steps[0]
    images, raw = (TrainingSet(run.curriculum.training_images(first, 64)) for run in (with_maps, without))
    raw.own.table[:] = torch.arange(256)
    seen = torch.zeros(256, dtype=torch.int64)
    for batch, ids in zip(with_maps.data.batches(first, images, 2), without.data.batches(first, raw, 2), strict=True):
        background = [0, 3, 4] + ([255] if void == "background" else [])
        assert batch.salient is not None
        expected = torch.isin(ids.labels, torch.tensor([3, 255] if void == "background" else [3]))
        assert torch.equal(batch.salient, expected)
        assert torch.equal(batch.images, ids.images)
        assert torch.equal(batch.labels, ids.labels.where(~torch.isin(ids.labels, torch.tensor(background)), 0))
        assert ids.salient is None
        seen += ids.labels.flatten().bincount(minlength=256)
    assert seen[[0, 1, 2, 3, 4, 255]].min() > 0


def test_a_run_records_its_maps_and_refuses_others(
    quick_config: MakeConfig, maps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = salient_config(quick_config, maps)
    result = train(config, tmp_path / "ssul")
    assert result["settings"]["data.saliency"] == str(maps)
    train(salient_config(quick_config, None), tmp_path / "all")
    models = [RunFolder(tmp_path / name).model(1).read_bytes() for name in ("ssul", "all")]
    assert models[0] != models[1]
    assert "saliency" not in capsys.readouterr().out
    with pytest.raises(InputError, match=r"holds another run \(data.saliency is .*maps there and None here"):
        train(salient_config(quick_config, None), tmp_path / "ssul")
    (maps / "003.png").write_bytes((maps / "004.png").read_bytes())
    with pytest.raises(InputError, match=r"has changed since it began: .*maps/003\.png is changed"):
        train(config, tmp_path / "ssul")


def test_other_methods_leave_maps_aside(
    quick_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = build(
        salient_config(quick_config, tmp_path / "none", "mib"), tmp_path, Fabric(accelerator="cpu"), Console()
    )
    assert "'mib' uses no saliency maps: --data.saliency" in capsys.readouterr().out
    first = built.curriculum.steps[0]
    images = TrainingSet(built.curriculum.training_images(first, 64))
    assert next(iter(built.data.batches(first, images, 1))).salient is None


@pytest.mark.parametrize("scoring", ["full", "paper"])
def test_whole_images_come_at_their_own_size_or_as_large_as_they_are_scored(
    scoring: str, quick_config: MakeConfig, tmp_path: Path
) -> None:
    wide = write_folder(tmp_path / "wide", train=6, val=2, size=40)
    for place in (*(wide / "images").iterdir(), *(wide / "masks").iterdir()):
        picture = Image.open(place)
        picture.resize((80, 40), Image.Resampling.NEAREST).save(place)
    config = quick_config("analytic")
    data = {"root": wide, "scoring": scoring, "crop_size": 64}
    run = build(
        config.model_copy(update={"data": config.data.model_copy(update=data)}), tmp_path, Fabric(accelerator="cpu")
    )
    own = run.curriculum.training_images(run.curriculum.steps[0], 64)
    found = [
        {tuple(image.shape[-2:]) for batch in batches for image in batch.images}
        for batches in (run.data.whole_images(own), run.data.images_as_scored(own))
    ]
    assert found == [{(40, 80)}, {(64, 128)} if scoring == "paper" else {(40, 80)}]
    assert (run.data.scored_scale is None) == (scoring == "full")
