from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import reference
from incseg.losses import feature_distillation, output_distillation, sigmoid_distillation, unbiased_distillation


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


def test_law_without_new_classes_unbiased_and_plain_distillation_agree() -> None:
    student, teacher = example(0)
    torch.testing.assert_close(unbiased_distillation(student, teacher), output_distillation(student, teacher))


def test_feature_distillation_is_the_mean_square() -> None:
    student, teacher = example(0)
    expected = sum((a - b) ** 2 for a, b in zip(student.flatten().tolist(), teacher.flatten().tolist(), strict=True))
    assert float(feature_distillation(student, teacher)) == pytest.approx(expected / student.numel())
    assert float(feature_distillation(student[:0], teacher[:0])) == 0
