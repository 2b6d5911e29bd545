from functools import partial

import pytest
import torch
from torch import Tensor

import reference
from incseg.losses import (
    CoarseLogits,
    balanced_cross_entropy,
    binary_cross_entropy,
    class_counts,
    cross_entropy,
    unbiased_cross_entropy,
)


def example(classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, classes, 3, 4, dtype=torch.float64, generator=generator)
    choices = torch.tensor([*range(classes), 255])
    return logits, choices[torch.randint(0, classes + 1, (2, 3, 4), generator=generator)]


def pixels(logits: Tensor) -> list[list[float]]:
    rows: list[list[float]] = logits.movedim(1, -1).flatten(0, 2).tolist()
    return rows


def test_cross_entropy_equals_its_definition() -> None:
    logits, labels = example()
    assert float(cross_entropy(logits, labels)) == pytest.approx(
        reference.cross_entropy(pixels(logits), labels.flatten().tolist()), rel=1e-12
    )


@pytest.mark.parametrize("classes", [None, (1, 2, 3, 4), (3, 4), ()])
@pytest.mark.parametrize("positive", [1.0, 4.0])
def test_binary_cross_entropy_equals_its_definition(positive: float, classes: tuple[int, ...] | None) -> None:
    logits, labels = example()
    asked = range(5) if classes is None else classes
    expected = reference.binary_cross_entropy(pixels(logits), labels.flatten().tolist(), asked, positive)
    for scores in (logits, CoarseLogits(logits, (labels.shape[1], labels.shape[2]))):
        found = binary_cross_entropy(scores, labels, classes, positive_weight=positive)
        assert float(found) == pytest.approx(expected, rel=1e-12)
    assert float(binary_cross_entropy(logits, torch.full_like(labels, 255), classes)) == 0
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: binary_cross_entropy(z, labels, classes), logits)
    gradient = torch.autograd.grad(binary_cross_entropy(logits, labels, classes), logits)[0]
    assert gradient.abs().sum(dim=(0, 2, 3)).nonzero().flatten().tolist() == list(asked)  # other classes stay free


@pytest.mark.parametrize("hidden", [(1,), (1, 3), (1, 2, 3), (2, 4)])
@pytest.mark.parametrize("positive", [1.0, 4.0])
def test_background_says_nothing_about_a_class_that_it_may_hide(positive: float, hidden: tuple[int, ...]) -> None:
    logits, labels = example()
    classes = (1, 2, 3)
    expected = reference.binary_cross_entropy(pixels(logits), labels.flatten().tolist(), classes, positive, hidden)
    loss = partial(binary_cross_entropy, positive_weight=positive, hidden_in_background=hidden)
    for scores in (logits, CoarseLogits(logits, (labels.shape[1], labels.shape[2]))):
        assert float(loss(scores, labels, classes)) == pytest.approx(expected, rel=1e-12)
    assert float(loss(logits, torch.zeros_like(labels), hidden)) == 0
    assert float(loss(logits[:0], labels[:0], classes)) == 0
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, labels, classes), logits)
    gradient = torch.autograd.grad(loss(logits, labels, classes), logits)[0]
    for channel in range(5):
        nowhere = (labels == 255) | ((labels == 0) & (channel in hidden)) | (channel not in classes)
        assert torch.equal(gradient[:, channel] == 0, nowhere)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_balanced_cross_entropy_equals_its_definition(power: float) -> None:
    logits, labels = example()
    expected = reference.balanced_cross_entropy(pixels(logits), labels.flatten().tolist(), power)
    assert float(balanced_cross_entropy(logits, labels, power=power)) == pytest.approx(expected, rel=1e-12)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: balanced_cross_entropy(z, labels, power=power), logits)
    nothing = balanced_cross_entropy(logits, torch.full_like(labels, 255), power=power)
    assert nothing.item() == 0
    assert not torch.autograd.grad(nothing, logits)[0].any()


def test_balanced_cross_entropies_of_parts_add_up_to_that_of_the_whole() -> None:
    logits, labels = example()
    counts = class_counts(labels, num_classes=5)
    assert counts.tolist() == [int((labels == c).sum()) for c in range(5)]
    parts = [balanced_cross_entropy(logits[i : i + 1], labels[i : i + 1], counts=counts) for i in (0, 1)]
    torch.testing.assert_close(sum(parts), balanced_cross_entropy(logits, labels))


@pytest.mark.parametrize("num_classes", [3, 255, 300])
def test_ignored_pixels_and_classes_to_come_are_not_counted(num_classes: int) -> None:
    labels = torch.tensor([[0, 2, 2, 254, 255, 255, 256, 299, 300, 1000]])
    expected = [int((labels == c).sum()) if c != 255 else 0 for c in range(num_classes)]
    assert class_counts(labels, num_classes=num_classes).tolist() == expected


def test_balance_gives_every_class_an_equal_say() -> None:
    logits = torch.zeros(1, 2, 1, 10, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[[0] * 9 + [1]]])
    (gradient,) = torch.autograd.grad(balanced_cross_entropy(logits, labels), logits)
    assert float(gradient.sum()) == pytest.approx(0)
    assert float(gradient[0, 0].sum()) == pytest.approx(0)  # nine against one are as strong as one against nine


@pytest.mark.parametrize("old_classes", [1, 2, 4, 5])
def test_unbiased_cross_entropy_equals_its_definition(old_classes: int) -> None:
    logits, labels = example()
    expected = reference.unbiased_cross_entropy(pixels(logits), labels.flatten().tolist(), old_classes)
    assert float(unbiased_cross_entropy(logits, labels, old_classes=old_classes)) == pytest.approx(expected, rel=1e-12)


def test_unbiased_ignored_pixels_are_not_taken_for_a_class_of_that_number() -> None:
    logits, labels = torch.randn(1, 300, 2, 2), torch.full((1, 2, 2), 255)
    assert unbiased_cross_entropy(logits, labels, old_classes=280) == 0


def test_law_without_old_classes_unbiased_is_plain() -> None:
    logits, labels = example()
    unbiased = unbiased_cross_entropy(logits, labels, old_classes=1)
    torch.testing.assert_close(unbiased, cross_entropy(logits, labels), rtol=1e-12, atol=0)


def test_gradients() -> None:
    logits, labels = example()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: cross_entropy(z, labels), logits)
    assert torch.autograd.gradcheck(lambda z: unbiased_cross_entropy(z, labels, old_classes=3), logits)


@pytest.mark.parametrize("old_classes", [1, 3])
def test_ignored_pixels_change_nothing(old_classes: int) -> None:
    logits, labels = example()
    changed = torch.where((labels == 255).unsqueeze(1), 100 * torch.randn_like(logits), logits)
    for z in (logits, changed):
        assert torch.equal(
            unbiased_cross_entropy(z, labels, old_classes=old_classes),
            unbiased_cross_entropy(logits, labels, old_classes=old_classes),
        )


def test_halves_of_a_batch_average_to_the_whole_however_the_ignored_pixels_fall() -> None:
    logits, labels = example()
    labels[0] = 255
    halves = [unbiased_cross_entropy(logits[i : i + 1], labels[i : i + 1], old_classes=3) for i in (0, 1)]
    torch.testing.assert_close(sum(halves) / 2, unbiased_cross_entropy(logits, labels, old_classes=3))


@pytest.mark.parametrize("old_classes", [1, 3])
def test_all_ignored_is_zero_with_zero_gradient(old_classes: int) -> None:
    logits, labels = example()
    logits.requires_grad_()
    loss = unbiased_cross_entropy(logits, torch.full_like(labels, 255), old_classes=old_classes)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0


def test_the_order_of_the_batch_does_not_matter_and_labels_stay_as_they_were() -> None:
    logits, labels = example()
    before = labels.clone()
    forward = unbiased_cross_entropy(logits, labels, old_classes=3)
    torch.testing.assert_close(forward, unbiased_cross_entropy(logits.flip(0), labels.flip(0), old_classes=3))
    assert torch.equal(labels, before)


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([500.0, -500.0, 0.0]).view(1, 3, 1, 1).requires_grad_()
    loss = unbiased_cross_entropy(logits, torch.tensor([[[2]]]), old_classes=2)
    loss.backward()
    assert loss.item() == pytest.approx(500)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
