"""Local POD against its definition, written out in plain Python."""

import pytest
import torch

import reference
from incseg.losses import local_pod, pod_distance


def maps(height: int = 8, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    first, second = (torch.randn(2, 3, height, width, dtype=torch.float64, generator=generator) for _ in range(2))
    return first, second


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 6), (5, 4), (4, 11)])
def test_pod_equals_its_definition(height: int, width: int) -> None:
    student, teacher = maps(height, width)
    expected = reference.pod_distance(student.tolist(), teacher.tolist())
    assert float(pod_distance(student, teacher)) == pytest.approx(expected, rel=1e-12)


def test_pooled_values_are_those_of_the_definition() -> None:
    student, _ = maps(4, 4)
    values = sorted(local_pod(student[:1, :1]).flatten().tolist())
    assert values == pytest.approx(sorted(reference.local_pod(student[0, 0].tolist(), (1, 2, 4))))


def test_maps_finer_scales_do_not_fit_are_compared_at_the_others() -> None:
    assert local_pod(torch.ones(1, 2, 1, 1)).shape == (1, 4)


def test_gradients_also_where_nothing_differs() -> None:
    student, teacher = maps()
    student.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: pod_distance(f, teacher), student)
    pod_distance(student, student.detach()).backward()
    assert student.grad is not None
    assert student.grad.abs().max() == 0


def test_unless_asked_for_every_scale_is_pooled_from_the_map_itself_as_published() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 2, 3, 8, 8).unbind()

    def published(features: torch.Tensor) -> torch.Tensor:
        pooled = []
        for scale in (1, 2, 4):
            windows = features.square().reshape(2, 3, scale, 8 // scale, scale, 8 // scale)
            pooled += [windows.mean(dim=5).flatten(1), windows.mean(dim=3).flatten(1)]
        return torch.cat(pooled, dim=1)

    expected = (published(student) - published(teacher)).square().sum(dim=1).sqrt().mean()
    assert torch.equal(pod_distance(student, teacher), expected)
    torch.testing.assert_close(pod_distance(student, teacher, fused=True), expected)
