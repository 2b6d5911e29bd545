"""Two real processes normalise as one does on the joined batch; in use and frozen they send nothing."""

import copy
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from timm.layers.norm_act import BatchNormAct2d
from timm.layers.split_batchnorm import SplitBatchNorm2d
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from incseg.models.synchronised import SynchronisedNorm, synchronise
from processes import PROCESSES, spawn

WORLD = 2
TRACED = "aot_eager_decomp_partition"  # traced and cut into forward and backward, but not translated
NORMS = {
    "plain": nn.BatchNorm2d(5),
    "with activation": BatchNormAct2d(5, act_layer=nn.SiLU),
    "cumulative": nn.BatchNorm2d(5, momentum=None),
    "of vectors": nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(5), nn.Unflatten(2, (9, 7))),
    "without weight": nn.BatchNorm2d(5, affine=False),
    "without statistics": nn.BatchNorm2d(5, track_running_stats=False),
}


class Network(nn.Module):
    """A norm between convolutions; what it is given is far from zero, where mean squares would cancel."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.before, self.norm, self.after = nn.Conv2d(3, 5, 3, padding=1), copy.deepcopy(norm), nn.Conv2d(5, 2, 1)
        torch.manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, 2, H, W)."""
        return self.after(self.norm(1000 + self.before(images)))  # type: ignore[no-any-return]


def joined_batch() -> Tensor:
    return torch.randn(4, 3, 9, 7, generator=torch.Generator().manual_seed(1)).double()


def trained(network: nn.Module, images: Tensor, run: nn.Module) -> dict[str, Tensor]:
    """What two passes in training leave: values, gradients and statistics; ``run`` calls the network."""
    images = images.clone().requires_grad_()
    for _ in range(2):
        network.zero_grad()
        images.grad = None
        values = run(images)
        (values * values.detach().sin()).mean().backward()  # another upstream gradient in every place
    assert images.grad is not None
    gradients = {name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None}
    return {"values": values.detach(), "images": images.grad, **gradients, **dict(network.named_buffers())}


def worker(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    found: dict[str, list[dict[str, Tensor]]] = {}
    for name, norm in NORMS.items():
        found[name] = []
        for compiled in (False, True):
            network = Network(norm).double()
            synchronise(network)
            assert sum(isinstance(module, SynchronisedNorm) for module in network.modules()) == 1
            if compiled:
                network.compile(backend=TRACED, fullgraph=True)
            shared = DistributedDataParallel(network, broadcast_buffers=False)
            found[name].append(trained(network, joined_batch().chunk(WORLD)[rank], shared))
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@PROCESSES
def test_two_processes_equal_one_on_the_joined_batch(tmp_path: Path) -> None:
    spawn(worker, tmp_path, WORLD)
    by_rank = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(WORLD)]
    for name, norm in NORMS.items():
        alone = Network(norm).double()
        expected = trained(alone, joined_batch(), alone)
        for first, second in zip(*(found[name] for found in by_rank), strict=True):  # plain and compiled
            assert first.keys() == second.keys() == expected.keys()
            for key, tensor in expected.items():
                found = [first[key], second[key]]
                if key in ("values", "images"):  # a process' own loss is a mean over its own share alone
                    found = [torch.cat(found) / (WORLD if key == "images" else 1)]
                for one in found:
                    torch.testing.assert_close(one, tensor, rtol=1e-10, atol=1e-10)


@pytest.fixture
def sent(group_of_one: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:  # noqa: ARG001
    """The names of the messages that a process sends."""
    messages, ops = [], torch.ops._c10d_functional
    for name in ("all_gather_into_tensor", "all_reduce"):

        def noted(*arguments: object, name: str = name, send: object = getattr(ops, name)) -> Tensor:
            messages.append(name)
            return send(*arguments)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(ops, name, noted)
    return messages


@pytest.mark.parametrize("name", ["plain", "with activation"])
def test_one_message_forward_and_one_backward_and_none_in_use(name: str, sent: list[str]) -> None:
    plain = Network(NORMS[name])
    network = copy.deepcopy(plain)
    synchronise(network)
    images = joined_batch().float()
    network(images).sum().backward()
    assert sent == ["all_gather_into_tensor", "all_reduce"]
    plain(images)
    plain.norm.eval()
    network.norm.eval()  # frozen in a network that is trained
    torch.testing.assert_close(network(images), plain(images))
    network(images).sum().backward()
    assert len(sent) == 2
    network.train()
    network.before.requires_grad_(False)
    network(images).sum().backward()
    assert sent[2:] == ["all_gather_into_tensor"], "nothing before the norm waits for a gradient"


def test_names_copies_and_types_stay(sent: list[str]) -> None:
    plain = Network(NORMS["with activation"])
    network = copy.deepcopy(plain)
    synchronise(network)
    assert [name for name, _ in network.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in network.named_buffers()] == [name for name, _ in plain.named_buffers()]
    assert isinstance(network.norm, BatchNormAct2d)
    network.load_state_dict(plain.state_dict())
    images = joined_batch().float()
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(other(images), network(images))
    assert sent.count("all_gather_into_tensor") == 4


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_are_averaged_in_float32(dtype: torch.dtype) -> None:
    plain = nn.BatchNorm2d(5)
    network = copy.deepcopy(plain)
    synchronise(network)
    images = (10 + torch.randn(4, 5, 33, 31, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
    upstream, gradients = torch.randn(4, 5, 33, 31).to(dtype), []
    for norm in (network, plain):
        found = norm(images)
        assert found.dtype == dtype
        gradients.append(torch.autograd.grad(found, [images, *norm.parameters()], upstream))
    torch.testing.assert_close(network.running_var, plain.running_var)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("group_of_one")
def test_kinds_that_stay_as_they_are_are_named() -> None:
    network = nn.Sequential(nn.BatchNorm2d(2), SplitBatchNorm2d(2))
    with pytest.warns(UserWarning, match="SplitBatchNorm2d is not synchronised: each process normalises its share"):
        synchronise(network)
    assert [isinstance(norm, SynchronisedNorm) for norm in network] == [True, False]
