"""Two real processes equal one process on the joined batch: values and gradients, weights shared as DDP shares them."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from incseg.losses import contrastive_distillation
from incseg.losses.contrastive.interface import contrastive_distillation_global
from processes import PROCESSES, spawn

WORLD, ROWS, TEACHER_ROWS, CHANNELS, CLASSES = 2, 24, 14, 6, 4
UPSTREAM = 0.3

VARIANTS: list[dict[str, Any]] = [
    {},
    {"denominator": "pair", "temperature": 0.2},
    {"detach_contrast": True},
    {"temperature": 0.01},
]
# "empty rank": the second process has no anchor. "one class per rank": every negative student is on the other process.
BATCHES = ["full", "empty rank", "one class per rank", "no probabilities"]


def joined_batch(kind: str) -> dict[str, Tensor | None]:
    """The rows of both processes, first those of process 0."""
    rng = torch.Generator().manual_seed(5)
    labels = torch.randint(-1, 3, (WORLD * ROWS,), generator=rng)
    teacher_labels = torch.randint(-1, 3, (WORLD * TEACHER_ROWS,), generator=rng)
    if kind == "empty rank":
        labels[ROWS:] = -1
    if kind == "one class per rank":
        labels = torch.arange(WORLD).repeat_interleave(ROWS)
    probs = torch.softmax(2 * torch.randn(WORLD * (ROWS + TEACHER_ROWS), CLASSES, generator=rng).double(), dim=1)
    plain = kind == "no probabilities"
    return {
        "anchors": torch.randn(WORLD * ROWS, CHANNELS, generator=rng).double(),
        "anchor_labels": labels,
        "teacher": torch.randn(WORLD * TEACHER_ROWS, CHANNELS, generator=rng).double(),
        "teacher_labels": teacher_labels,
        "anchor_probs": None if plain else probs[: WORLD * ROWS],
        "teacher_probs": None if plain else probs[WORLD * ROWS :],
    }


def network() -> nn.Linear:
    torch.manual_seed(11)
    return nn.Linear(CHANNELS, CHANNELS).double()


def worker(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    whole: Any = joined_batch("full")
    with pytest.raises(ValueError, match="one process only"):
        contrastive_distillation_global(**whole, backend="eager")
    found = []
    for kind in BATCHES:
        for variant in VARIANTS:
            own = {k: None if v is None else v.chunk(WORLD)[rank] for k, v in joined_batch(kind).items()}
            model = DistributedDataParallel(network())
            features = own.pop("anchors")
            assert features is not None
            features = features.clone().requires_grad_()
            inputs: Any = {"anchors": model(features), **own}
            value = contrastive_distillation_global(**inputs, **variant)
            (value * UPSTREAM).backward()
            found.append((value.detach(), features.grad, model.module.weight.grad))
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@PROCESSES
def test_two_processes_equal_one_on_the_joined_batch(tmp_path: Path) -> None:
    spawn(worker, tmp_path, WORLD)
    by_rank = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(WORLD)]
    settings = [(kind, variant) for kind in BATCHES for variant in VARIANTS]
    for (kind, variant), *found in zip(settings, *by_rank, strict=True):
        batch: Any = joined_batch(kind)
        model = network()
        batch["anchors"].requires_grad_()
        loss = contrastive_distillation(**{**batch, "anchors": model(batch["anchors"])}, **variant, backend="eager")
        (loss * UPSTREAM).backward()
        assert loss > 0
        torch.testing.assert_close(torch.stack([x[0] for x in found]).mean(), loss.detach())
        # Each process' own backward is worth `WORLD` of its share, because DDP divides the sum by `WORLD`.
        torch.testing.assert_close(torch.cat([x[1] for x in found]) / WORLD, batch["anchors"].grad)
        for rank in range(WORLD):
            torch.testing.assert_close(found[rank][2], model.weight.grad)


def test_alone_it_is_the_local_loss() -> None:
    batch: Any = joined_batch("full")
    assert torch.equal(contrastive_distillation_global(**batch), contrastive_distillation(**batch))
