"""Batches in pieces, and activations computed again, give the gradients of the whole batch."""

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from incseg.config import RunConfig
from incseg.engine.assembly import build, launch, train
from incseg.engine.finite import UpdateGuard, Verdict
from incseg.engine.machine import enough_memory, savings
from incseg.errors import InputError, LocalError, TrainingError
from incseg.models.easing import DilatedConv2d, Enlarging

MakeConfig = Callable[..., RunConfig]


def weights_after(config: RunConfig, folder: Path, *, frozen: bool) -> list[Any]:
    """All weights and statistics after one iteration of step 1; with batch normalisation as it is, if wanted."""
    trainer = build(config, folder, launch(config))
    trainer.prepare(trainer.curriculum.steps[0])
    run = trainer.prepare(trainer.curriculum.steps[1])
    if frozen:
        trainer.student.eval()
    trainer.iterations.train_on(run, next(iter(trainer.data.batches(run.step, run.images, epochs=1))), 0)
    return [value.clone() for value in trainer.student.state_dict().values()]


@pytest.mark.parametrize("method", ["mib", "plop", "ewc"])
def test_a_batch_in_pieces_has_the_gradients_of_the_whole(
    method: str, quick_config: MakeConfig, tmp_path: Path
) -> None:
    def run(pieces: int) -> list[Any]:
        engine = {"accelerator": "cpu", "accumulate": pieces}
        config = quick_config(method, engine=engine, optim={"epochs": 1, "batch_size": 4})
        return weights_after(config, tmp_path / str(pieces), frozen=True)

    for whole, pieces in zip(run(1), run(2), strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-6)


def test_a_finite_penalty_does_not_hide_a_loss_that_is_not(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quick_config("ewc", engine={"accelerator": "cpu"})
    trainer = build(config, tmp_path, launch(config))
    trainer.prepare(trainer.curriculum.steps[0])
    run = trainer.prepare(trainer.curriculum.steps[1])
    before = [value.clone() for value in trainer.student.parameters()]
    losses = type(trainer.method).losses
    monkeypatch.setattr(
        type(trainer.method),
        "losses",
        lambda method, view: {name: value + torch.inf for name, value in losses(method, view).items()},
    )  # its gradient is finite
    trainer.iterations.train_on(run, next(iter(trainer.data.batches(run.step, run.images, epochs=1))), 0)
    assert all(torch.equal(one, other) for one, other in zip(before, trainer.student.parameters(), strict=True))


def test_activations_computed_again_change_nothing(quick_config: MakeConfig, tmp_path: Path) -> None:
    def run(recompute: bool) -> list[Any]:
        network = {"encoder": "resnet18", "decoder": "deeplabv3plus", "weights": "none"}  # it has blocks
        optim, engine = {"batch_size": 4, "freeze_norm": False}, {"accelerator": "cpu", "recompute": recompute}
        config = quick_config("mib", model=network, engine=engine, optim=optim)
        return weights_after(config, tmp_path / str(recompute), frozen=False)

    assert all(torch.equal(one, other) for one, other in zip(run(False), run(True), strict=True))


@pytest.mark.parametrize(
    ("method", "pieces", "reason"),
    [("mib+ucd", 2, "'ucd': its loss compares"), ("mib", 3, "cannot divide the 4"), ("mib", 4, "at least two")],
)
def test_pieces_that_would_change_the_loss_are_refused(
    method: str, pieces: int, reason: str, quick_config: MakeConfig, tmp_path: Path
) -> None:
    engine = {"accelerator": "cpu", "accumulate": pieces}
    config = quick_config(method, engine=engine, optim={"epochs": 1, "batch_size": 4})
    with pytest.raises(InputError, match=reason):
        train(config, tmp_path)


def test_memory_is_not_saved_where_it_cannot_be(quick_config: MakeConfig, tmp_path: Path) -> None:
    config = quick_config("ft", engine={"accelerator": "cpu", "recompute": True})
    network = {"encoder": "vgg11_bn", "decoder": "fpn", "output_stride": 32, "decoder_options": {}}
    config = config.model_copy(update={"model": config.model.model_copy(update=network)})
    with pytest.raises(InputError, match=r"engine\.recompute saves nothing with the encoder 'vgg11_bn'"):
        train(config, tmp_path)


def test_terms_that_wait_to_be_read_keep_no_graph(
    quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Verdict] = []
    original = UpdateGuard.update

    def update(guard: UpdateGuard, verdict: Verdict) -> None:
        heard.append(verdict)
        original(guard, verdict)

    monkeypatch.setattr(UpdateGuard, "update", update)
    train(quick_config("mib+ucd+ewc", optim={"epochs": 1, "batch_size": 4}), tmp_path)
    assert heard
    assert not any(value.requires_grad for verdict in heard for value in verdict.terms.values())


@pytest.mark.parametrize(("has_gpu", "cache"), [(True, "auto"), (False, "ram")])
def test_a_full_memory_is_told_with_what_needs_less(
    has_gpu: bool, cache: str, quick_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    with (
        pytest.raises(
            TrainingError, match=r"(?s)--engine\.accumulate 2.*--engine\.recompute true.*--data\.cache none, or"
        ),
        enough_memory(quick_config("mib", engine={"accelerator": "auto"}, data={"cache": cache})),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [(8, "score fewer at a time with --engine.score-batch-size 4, or close"), (1, "scored: close what else")],
)
def test_a_full_memory_when_scoring_is_told_with_what_needs_less(
    wanted: int, advice: str, quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("incseg.engine.evaluator.score", full)
    engine = {"accelerator": "cpu", "score_batch_size": wanted}
    with pytest.raises(TrainingError, match=re.escape(advice)):
        train(quick_config("ft", task="offline", engine=engine), tmp_path)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
     RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")],
)  # fmt: skip
def test_a_full_memory_is_known_however_it_is_said(error: Exception, quick_config: MakeConfig) -> None:
    with pytest.raises(LocalError, match="the memory is full with batches of 4 crops"), enough_memory(quick_config()):
        raise error
    with pytest.raises(RuntimeError, match="shapes"), enough_memory(quick_config()):
        raise RuntimeError("shapes do not match")


def test_what_is_used_already_or_would_be_refused_is_not_proposed(quick_config: MakeConfig) -> None:
    assert [way.split("--")[1] for way in savings(quick_config("mib+ucd"))] == ["engine.recompute true"]  # on a CPU
    engine = {"accelerator": "cpu", "recompute": True, "accumulate": 2}
    assert not list(savings(quick_config("mib", engine=engine, optim={"batch_size": 4}, data={"cache": "none"})))


@pytest.mark.parametrize(("pixels", "compiled"), [(10**6, False), (10**12, True)])
def test_networks_are_compiled_where_the_run_is_long(
    pixels: int, compiled: bool, quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def noted(*_: object, compiled: bool, **__: object) -> None:
        asked.append(compiled)

    for name in ("student_network", "teacher_network"):
        monkeypatch.setattr(f"incseg.engine.training_iteration.{name}", noted)
    config = quick_config("mib", engine={"accelerator": "cpu"})
    trainer = build(config, tmp_path, launch(config))
    step = trainer.curriculum.steps[1]
    own = trainer.curriculum.training_images(step, config.data.crop_size)
    context = trainer._context(step, own, teacher=copy.deepcopy(trainer.student))
    replace(trainer.iterations, pixels=pixels).networks(context)
    assert asked == [compiled, compiled]


def test_all_that_a_run_trains_on_is_counted(quick_config: MakeConfig, tmp_path: Path) -> None:
    config = quick_config("mib", engine={"accelerator": "cpu"}, optim={"epochs": 3, "incremental_epochs": 2})
    trainer = build(config, tmp_path, launch(config))
    first, *later = (len(images) for images in trainer.curriculum.indices)
    assert trainer.iterations.pixels == (3 * first + 2 * sum(later)) * config.data.crop_size**2


@pytest.mark.parametrize("compiled", [True, False])
def test_a_cpu_computes_in_other_ways_than_pytorch_only_where_it_may(
    compiled: bool, quick_config: MakeConfig, tmp_path: Path
) -> None:
    config = quick_config("mib", engine={"accelerator": "cpu", "compile": compiled})
    trainer = build(config, tmp_path, launch(config))
    trainer.prepare(trainer.curriculum.steps[0])
    run = trainer.prepare(trainer.curriculum.steps[1])
    assert run.context.teacher is not None
    networks = {"student": trainer.student, "teacher": run.context.teacher}
    quick: dict[str, bool] = {}
    for name, network in networks.items():
        network.decoder.register_forward_pre_hook(partial(_note_easing, quick, name))
    trainer.iterations.train_on(run, next(iter(trainer.data.batches(run.step, run.images, epochs=1))), 0)
    assert quick == {"student": compiled, "teacher": compiled}
    for network in networks.values():
        assert not any(isinstance(module, DilatedConv2d | Enlarging) for module in network.modules())


def _note_easing(found: dict[str, bool], name: str, decoder: nn.Module, _: object) -> None:
    found[name] = any(isinstance(module, DilatedConv2d | Enlarging) for module in decoder.modules())
