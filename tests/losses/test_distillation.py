from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import reference
from incseg.losses import (
    decomposed_logits,
    feature_distillation,
    label_guided_distillation,
    merge_new_into_background,
    output_distillation,
    sigmoid_distillation,
    unbiased_distillation,
)


def example(new: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    student = 2 * torch.randn(2, 4 + new, 2, 3, dtype=torch.float64, generator=generator)
    teacher = 2 * torch.randn(2, 4, 2, 3, dtype=torch.float64, generator=generator)
    return student, teacher


def pixels(logits: Tensor) -> list[list[float]]:
    rows: list[list[float]] = logits.movedim(1, -1).flatten(0, 2).tolist()
    return rows


@pytest.mark.parametrize("new", [0, 1, 3])
def test_equals_its_definition(new: int) -> None:
    student, teacher = example(new)
    expected = reference.unbiased_distillation(pixels(student), pixels(teacher))
    assert float(unbiased_distillation(student, teacher)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("new", [0, 1, 3])
def test_labels_tell_where_background_is_not_shared_and_what_is_not_distilled(new: int) -> None:
    student, teacher = example(new)
    labels = torch.tensor([0, 255, 1, 3 + new, 0, min(new, 1) * 4] * 2).view(2, 2, 3)
    expected = reference.unbiased_distillation(pixels(student), pixels(teacher), labels.flatten().tolist())
    assert float(unbiased_distillation(student, teacher, labels)) == pytest.approx(expected, rel=1e-12)
    everywhere = unbiased_distillation(student, teacher, torch.zeros_like(labels))
    plain = -(teacher.softmax(1) * student.log_softmax(1)[:, :4]).mean()
    torch.testing.assert_close(everywhere, plain, rtol=1e-12, atol=0)


def test_law_without_new_classes_it_is_plain_distillation() -> None:
    student, teacher = example(0)
    plain = -(teacher.softmax(1) * student.log_softmax(1)).mean()
    torch.testing.assert_close(unbiased_distillation(student, teacher), plain, rtol=1e-12, atol=0)


def test_gradients_reach_the_student_only() -> None:
    student, teacher = example(2)
    student.requires_grad_()
    teacher.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: unbiased_distillation(z, teacher.detach()), student)
    unbiased_distillation(student, teacher).backward()
    assert teacher.grad is None


def test_probability_may_move_from_background_to_a_new_class_for_free() -> None:
    teacher = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
    kept = torch.tensor([2.0, 0.0, -50.0]).view(1, 3, 1, 1)
    moved = torch.tensor([-50.0, 0.0, 2.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(unbiased_distillation(kept, teacher), unbiased_distillation(moved, teacher))


def test_an_empty_batch_is_zero() -> None:
    student, teacher = example(1)
    assert unbiased_distillation(student[:0], teacher[:0]).item() == 0


def test_a_shrunken_student_is_refused() -> None:
    student, teacher = example(0)
    with pytest.raises(ValueError, match="only grows"):
        unbiased_distillation(student[:, :3], teacher)


@pytest.mark.parametrize("new", [0, 2])
@pytest.mark.parametrize(
    ("loss", "definition"),
    [
        (output_distillation, reference.output_distillation),
        (sigmoid_distillation, reference.sigmoid_distillation),
    ],
)
def test_distillation_of_the_old_classes_alone(
    new: int, loss: Callable[[Tensor, Tensor], Tensor], definition: Callable[..., float]
) -> None:
    student, teacher = example(new)
    assert float(loss(student, teacher)) == pytest.approx(definition(pixels(student), pixels(teacher)), rel=1e-12)
    assert float(loss(student[:0], teacher[:0])) == 0
    student.requires_grad_()
    teacher.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, teacher.detach()), student)
    loss(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert student.grad[:, 4:].abs().sum() == 0


@pytest.mark.parametrize("signed", [False, True])
def test_decomposed_logits_add_up_and_equal_their_definition(signed: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(2, 6, 3, 2, dtype=torch.float64, generator=generator)
    features = features if signed else features.clamp_min(0)
    weight = torch.randn(4, 6, 1, 1, dtype=torch.float64, generator=generator)
    found = decomposed_logits(features, weight)
    torch.testing.assert_close(sum(found), torch.nn.functional.conv2d(features, weight))
    for index, feature in enumerate(pixels(features)):
        expected = reference.decomposed_logits(feature, weight.flatten(1).tolist())
        assert [pixels(part)[index] for part in found] == [pytest.approx(side) for side in expected]
    if not signed:  # the authors' form
        torch.testing.assert_close(found[0], torch.nn.functional.conv2d(features, weight.clamp_min(0)))


def test_law_without_new_classes_unbiased_and_plain_distillation_agree() -> None:
    student, teacher = example(0)
    torch.testing.assert_close(unbiased_distillation(student, teacher), output_distillation(student, teacher))


@pytest.mark.parametrize("new", [0, 2])
def test_label_guided_distillation_gives_background_to_labelled_new_classes(new: int) -> None:
    student, teacher = example(new)
    labels = torch.tensor([0, 4, 5, 255, 2, 4] if new else [0, 1, 2, 255, 2, 3]).repeat(2).view(2, 2, 3)
    expected = reference.label_guided_distillation(pixels(student), pixels(teacher), labels.flatten().tolist())
    assert float(label_guided_distillation(student, teacher, labels)) == pytest.approx(expected, rel=1e-12)
    assert float(label_guided_distillation(student[:0], teacher[:0], labels[:0])) == 0
    student.requires_grad_()
    teacher.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: label_guided_distillation(z, teacher.detach(), labels), student)
    label_guided_distillation(student, teacher, labels).backward()
    assert teacher.grad is None


def test_feature_distillation_is_the_mean_square() -> None:
    student, teacher = example(0)
    expected = sum((a - b) ** 2 for a, b in zip(student.flatten().tolist(), teacher.flatten().tolist(), strict=True))
    assert float(feature_distillation(student, teacher)) == pytest.approx(expected / student.numel())
    assert float(feature_distillation(student[:0], teacher[:0])) == 0


def test_new_logits_are_added_to_background() -> None:
    logits = torch.arange(5.0).view(1, 5, 1, 1)
    assert merge_new_into_background(logits, 3).flatten().tolist() == [0 + 3 + 4, 1, 2]
