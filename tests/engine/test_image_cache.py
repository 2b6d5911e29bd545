"""Runs whose images are kept: the same result to the bit, and a sentence where they cannot be."""

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric import Fabric

from command_line import run
from incseg.config import RunConfig
from incseg.engine.assembly import build, train
from incseg.engine.image_cache import ImageCache
from incseg.errors import InputError
from incseg.run_folder import RunFolder

MakeConfig = Callable[..., RunConfig]


def with_cache(config: RunConfig, cache: str, **data: object) -> RunConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"cache": cache, **data})})


@pytest.fixture
def _cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU play the GPU: it cuts the crops of a whole batch from decoded images."""
    monkeypatch.setattr(ImageCache, "__post_init__", lambda _: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))


@pytest.mark.usefixtures("_cpu_as_gpu")
def test_a_run_is_the_same_to_the_bit_wherever_its_images_are_kept(
    quick_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With rehearsal, so that images of an earlier step come back under the labels they had."""
    config = quick_config("emseg", optim={"epochs": 1, "batch_size": 4})
    for cache in ("none", "ram", "gpu"):
        train(with_cache(config, cache), tmp_path / cache)
        said = capsys.readouterr().out
        assert said.count("images are kept") == (0 if cache == "none" else 1), "decoded once for both steps"
    models = [RunFolder(tmp_path / cache).model(1).read_bytes() for cache in ("none", "ram", "gpu")]
    assert models[0] == models[1] == models[2]


@pytest.mark.usefixtures("_cpu_as_gpu")
def test_a_head_is_solved_on_the_step_0_of_another_run_wherever_images_are_kept(
    quick_config: MakeConfig, tmp_path: Path
) -> None:
    """That step is finished, and yet its crops are looked at again."""
    config = quick_config(optim={"epochs": 1, "batch_size": 4})
    train(with_cache(config, "none"), tmp_path / "ft")
    solving = quick_config("analytic", optim={"epochs": 1, "batch_size": 4}, analytic={"crops": 1, "width": 64})
    for cache in ("none", "ram", "gpu"):
        train(with_cache(solving, cache), tmp_path / cache, first_step=tmp_path / "ft")
    models = [RunFolder(tmp_path / cache).model(1).read_bytes() for cache in ("none", "ram", "gpu")]
    assert models[0] == models[1] == models[2]


def test_where_images_do_not_fit_auto_reads_files_and_gpu_refuses(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = build(quick_config(), tmp_path, Fabric(accelerator="cpu"))
    on_gpu = SimpleNamespace(device=torch.device("cuda"), world_size=1)

    def cache(name: str, **data: object) -> ImageCache:
        config = with_cache(built.config, name, **data)
        return replace(built.cache, config=config, fabric=on_gpu)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (300_000, 2**30))
    too_large = r"they would take 0\.3 MB, more than {} of 0\.3 MB of free memory of the GPU"
    assert cache("auto")._decoded is None
    said = f"images are read from their files in every epoch: {too_large.format('25%')}"
    assert re.search(said, capsys.readouterr().out)
    with pytest.raises(InputError, match=f"--data.cache gpu is not possible: {too_large.format('80%')}; use another"):
        _ = cache("gpu")._decoded
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))
    with pytest.raises(InputError, match="an image has 64 pixels on a side, more than 8 times the crop of 4"):
        _ = cache("gpu", crop_size=4)._decoded
    assert built.cache._decoded is None, "on a CPU, auto keeps nothing"


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run("train", "folder/2-2/overlapped", "--data-root", tiny_folder, "--data.cache", "gpu",
               "--engine.accelerator", "cpu", "--model.encoder", "test_resnet", "--model.weights", "none",
               "--out", tmp_path / "run")  # fmt: skip
    assert code == 2
    said = capsys.readouterr().err
    assert "--data.cache gpu needs a CUDA device, and this run is on 'cpu': use ram, or none." in said
    assert not RunFolder(tmp_path / "run").config.exists()


@pytest.mark.parametrize(("method", "everything"), [("mib", False), ("emseg", True)])
def test_images_of_finished_steps_are_not_decoded_again_unless_they_are_replayed(
    method: str, everything: bool, quick_config: MakeConfig, tmp_path: Path
) -> None:
    config = with_cache(quick_config(method), "ram")
    cache = build(config, tmp_path, Fabric(accelerator="cpu")).cache
    first, *later = (set(images) for images in cache.curriculum.indices)
    later_ones = set().union(*later)
    assert first - later_ones, "some are of step 0 alone"
    finished = SimpleNamespace(finished_steps=[0])
    decoded = replace(cache, folder=finished)._decoded  # type: ignore[arg-type]
    assert decoded is not None
    assert set(decoded.layout.places) == (first | later_ones if everything else later_ones)


def test_what_one_process_cannot_keep_is_refused_by_all(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process says it for all; one that goes on alone would wait for those that ended."""
    built = build(quick_config(), tmp_path, Fabric(accelerator="cpu"))
    pair = SimpleNamespace(device=torch.device("cuda"), world_size=2)
    cache = replace(built.cache, config=with_cache(built.config, "gpu"), fabric=pair)  # type: ignore[arg-type]

    def gathered(reasons: list[str], own: str) -> None:
        assert own == ""
        reasons[:] = [own, "they would take too much there"]

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))
    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    with pytest.raises(InputError, match="gpu is not possible: they would take too much there; use another"):
        _ = cache._decoded


def test_ram_is_asked_for_where_the_system_does_not_say_how_much_there_is(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(with_cache(quick_config(), "ram"), tmp_path, Fabric(accelerator="cpu"))
    monkeypatch.delattr(os, "sysconf")  # as on Windows
    assert built.cache._decoded is not None


@pytest.mark.parametrize(
    ("memory", "devices", "fits"), [(10**9, 1, True), (700_000, 1, True), (700_000, 2, False), (10, 1, False)]
)
def test_ram_is_refused_where_the_images_of_all_processes_do_not_fit(
    memory: int, devices: int, fits: bool, quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_cache(quick_config(), "ram")
    built = build(config, tmp_path, Fabric(accelerator="cpu"))
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"devices": devices})})
    monkeypatch.setattr("incseg.engine.image_cache.whole_memory", lambda: memory)
    with nullcontext() if fits else pytest.raises(InputError, match=r"--data\.cache ram is not possible: .* of RAM"):
        assert replace(built.cache, config=config)._decoded is not None


def test_with_auto_every_process_decides_for_itself(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(quick_config(), tmp_path, Fabric(accelerator="cpu"))
    pair = SimpleNamespace(device=torch.device("cuda"), world_size=2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 2**30))
    monkeypatch.delattr(torch.distributed, "all_gather_object")
    assert replace(built.cache, config=with_cache(built.config, "auto"), fabric=pair)._decoded is None  # type: ignore[arg-type]
