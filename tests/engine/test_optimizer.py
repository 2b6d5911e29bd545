"""What is optimised in a step, and how fast."""

import pytest
import torch
from torch import nn

from incseg.config import OptimConfig
from incseg.engine.optimizer import (
    build_optimizer,
    freeze_by_rate,
    freeze_norm,
    freeze_unused,
    restore,
    set_learning_rate,
)
from incseg.errors import InputError
from incseg.models import Architecture, Segmenter


def test_gradient_descent_settles_up_to_the_stable_curvature_and_not_beyond() -> None:
    optim = OptimConfig(incremental_learning_rate=0.03, weight_decay=0)
    for step in (0, 1):
        for share, settles in ((0.99, True), (1.01, False)):
            model = nn.Linear(1, 1, bias=False).double()
            nn.init.ones_(model.weight)
            optimizer = build_optimizer(model, optim)
            optimizer.param_groups[0]["lr"] = optim.learning_rate_at(step, 0)
            for _ in range(2000):
                model.weight.grad = share * optim.stable_curvature(step) * model.weight.detach()
                optimizer.step()
            assert (abs(model.weight.item()) < 1) == settles


def test_the_learning_rate_falls_as_a_power_from_a_start_per_step() -> None:
    optim = OptimConfig(learning_rate=0.01, incremental_learning_rate=0.001, power=0.9)
    assert optim.learning_rate_at(0, 0) == 0.01
    assert [optim.learning_rate_at(step, 0) for step in (1, 2)] == [0.001, 0.001]
    assert optim.learning_rate_at(0, 0.5) == pytest.approx(0.01 * 0.5**0.9)


def small(*head_sizes: int) -> Segmenter:
    return Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), head_sizes)


def test_after_step_0_each_part_of_the_network_learns_at_its_own_rate() -> None:
    optim = OptimConfig(encoder_rate=0.1, decoder_rate=2, old_heads_rate=0, new_heads_rate=10, momentum=0)
    rates = {"encoder.": 0.1, "decoder.": 2, "classifier.heads.0.": 0, "classifier.heads.1.": 10}
    for step, heads, expected in ((0, [3, 2], dict.fromkeys(rates, 1)), (1, [3, 2], rates), (1, [5], rates)):
        segmenter = small(*heads).double()  # the last is a step of a domain protocol, which adds no head
        before = {name: parameter.detach().clone() for name, parameter in segmenter.named_parameters()}
        freeze_by_rate(segmenter, optim, step)
        optimizer = build_optimizer(segmenter, optim, step=step)
        set_learning_rate(optimizer.param_groups, 0.5)
        for parameter in segmenter.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        for name, parameter in segmenter.named_parameters():
            rate = next(factor for prefix, factor in expected.items() if name.startswith(prefix))
            decayed = 1 + optim.weight_decay * before[name]
            torch.testing.assert_close(parameter.detach(), before[name] - 0.5 * rate * decayed)


def test_equal_rates_are_one_group_and_nothing_to_train_is_refused() -> None:
    segmenter = small(3, 2)
    assert len(build_optimizer(segmenter, OptimConfig(), step=1).param_groups) == 1
    frozen = OptimConfig(encoder_rate=0, decoder_rate=0, old_heads_rate=0, new_heads_rate=0)
    freeze_by_rate(segmenter, frozen, 1)
    with pytest.raises(InputError, match="step 1 has nothing to train"):
        build_optimizer(segmenter, frozen, step=1)


def test_the_stable_curvature_is_that_of_the_fastest_parameters_a_penalty_holds() -> None:
    plain = OptimConfig()
    assert OptimConfig(new_heads_rate=10).stable_curvature(1) == plain.stable_curvature(1)
    assert OptimConfig(old_heads_rate=4).stable_curvature(1) == plain.stable_curvature(1) / 4
    assert OptimConfig(old_heads_rate=4).stable_curvature(0) == plain.stable_curvature(0)


def names_of_frozen(segmenter: Segmenter) -> set[str]:
    return {name for name, parameter in segmenter.named_parameters() if not parameter.requires_grad}


def test_only_parameters_without_influence_are_frozen_and_nothing_else_changes() -> None:
    segmenter = Segmenter(Architecture(encoder="efficientnet-b0", decoder="fpn"), [3]).train()
    segmenter.decoder.eval()  # as a method that keeps statistics would
    before = {name: tensor.clone() for name, tensor in segmenter.state_dict().items()}
    freeze_unused(segmenter, 64, with_stages=False)
    assert names_of_frozen(segmenter) == {"encoder._conv_head.weight", "encoder._bn1.weight", "encoder._bn1.bias"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in segmenter.state_dict().items())
    assert all(parameter.grad is None for parameter in segmenter.parameters())
    assert segmenter.encoder.training
    assert not segmenter.decoder.training


def test_what_a_method_froze_or_added_stays_as_it_is() -> None:
    segmenter = small(3)
    segmenter.add_module("helper", nn.Linear(2, 2))  # trained beside the network, by the method itself
    segmenter.encoder.requires_grad_(False)
    freeze_unused(segmenter, 64, with_stages=True)
    assert names_of_frozen(segmenter) == {f"encoder.{name}" for name, _ in segmenter.encoder.named_parameters()}
    segmenter.requires_grad_(False)
    freeze_unused(segmenter, 64, with_stages=False)
    assert len(names_of_frozen(segmenter)) == len(list(segmenter.parameters()))


def test_a_stage_that_only_a_loss_looks_at_is_trained() -> None:
    segmenter = small(3)
    encoder = segmenter.encoder

    class WithBranch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.branch = encoder, nn.Conv2d(3, 4, 1)

        def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
            first, _, *rest = self.inner(images)
            return [first, self.branch(first), *rest]  # the decoder uses the last stage only

    segmenter.encoder = WithBranch()
    freeze_unused(segmenter, 64, with_stages=False)
    assert {"encoder.branch.weight", "encoder.branch.bias"} <= names_of_frozen(segmenter)
    segmenter.requires_grad_(True)
    freeze_unused(segmenter, 64, with_stages=True)
    assert not {"encoder.branch.weight", "encoder.branch.bias"} & names_of_frozen(segmenter)


def test_frozen_normalisation_keeps_its_statistics_scales_and_shifts_in_training() -> None:
    segmenter = Segmenter(Architecture(encoder="resnet18", decoder="fpn"), [3]).train()
    freeze_norm(segmenter)
    freeze_unused(segmenter, 64, with_stages=False)  # must not thaw them
    before = {name: tensor.clone() for name, tensor in segmenter.state_dict().items()}
    optimizer = build_optimizer(segmenter, OptimConfig(learning_rate=1))
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    segmenter(images).logits.square().sum().backward()
    optimizer.step()
    changed = {name for name, tensor in segmenter.state_dict().items() if not torch.equal(tensor, before[name])}
    assert "encoder.conv1.weight" in changed
    assert not {name for name in changed if ".bn" in name or "running" in name}


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("updates", [0, 2])
def test_a_run_resumes_what_was_computed_in_another_way(saved: bool, resumed: bool, updates: int) -> None:
    def model() -> tuple[nn.Linear, torch.Generator]:
        torch.manual_seed(0)
        return nn.Linear(3, 2), torch.Generator().manual_seed(1)

    def update(linear: nn.Linear, optimizer: torch.optim.SGD, generator: torch.Generator) -> None:
        for parameter in linear.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        if optimizer.defaults["fused"]:
            optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]  # as an iteration does
        optimizer.step()

    expected, numbers = model()
    plain = build_optimizer(expected, OptimConfig())
    for _ in range(updates + 2):
        update(expected, plain, numbers)

    network, numbers = model()
    before = build_optimizer(network, OptimConfig(), fused=saved)
    for _ in range(updates):
        update(network, before, numbers)
    after = build_optimizer(network, OptimConfig(), fused=resumed)
    restore(after, before.state_dict())
    assert after.param_groups[0]["fused"] == (resumed or None)
    for _ in range(2):
        update(network, after, numbers)
    torch.testing.assert_close(network.state_dict(), expected.state_dict())
