from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import reference
from incseg.losses import channel_cube_distance, pod_distance, spatial_cube_distance, weighted_feature_distillation


def maps(height: int = 5, width: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    first, second = (torch.randn(2, 4, height, width, dtype=torch.float64, generator=generator) for _ in range(2))
    return first, second


def test_spatial_cubes_equal_their_definition_also_where_windows_exceed_the_map() -> None:
    student, teacher = maps()
    for windows in ((2, 4), (6, 12)):
        expected = reference.spatial_cube_distance(student.tolist(), teacher.tolist(), windows)
        assert float(spatial_cube_distance(student, teacher, windows)) == pytest.approx(expected, rel=1e-12)
    published = torch.stack([spatial_cube_distance(student, teacher, [k]) for k in range(4, 25, 4)]).mean()
    torch.testing.assert_close(spatial_cube_distance(student, teacher), published)


def test_channel_cubes_equal_their_definition() -> None:
    student, teacher = maps()
    expected = reference.channel_cube_distance(student.tolist(), teacher.tolist())
    assert float(channel_cube_distance(student, teacher)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("distance", [spatial_cube_distance, channel_cube_distance])
def test_gradients_reach_the_student_only_and_exist_where_nothing_differs(
    distance: Callable[[Tensor, Tensor], Tensor],
) -> None:
    student, teacher = maps(3, 3)
    student.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: distance(f, teacher), student)
    distance(student, student.detach().clone().requires_grad_()).backward()
    assert student.grad is not None
    assert student.grad.abs().max() == 0


def test_features_count_by_their_weight() -> None:
    student, teacher = maps(3, 3)
    weights = torch.tensor([0.0, 0.5, 1.0, 0.25, 0.0, 1.0, 0.0, 0.0, 2.0] * 2).double().view(2, 3, 3)
    own, others = (x.movedim(1, -1).flatten(0, 2).tolist() for x in (student, teacher))
    expected = reference.weighted_feature_distillation(own, others, weights.flatten().tolist())
    assert float(weighted_feature_distillation(student, teacher, weights)) == pytest.approx(expected, rel=1e-12)
    assert float(weighted_feature_distillation(student, teacher, 0 * weights)) == 0
    parts = [weighted_feature_distillation(student[i], teacher[i], weights[i], (weights > 0).sum()) for i in ([0], [1])]
    torch.testing.assert_close(torch.stack(parts).sum(), weighted_feature_distillation(student, teacher, weights))


@pytest.mark.parametrize("distance", [spatial_cube_distance, channel_cube_distance, pod_distance])
def test_short_maps_are_compared_as_float32_ones_are(distance: Callable[[Tensor, Tensor], Tensor]) -> None:
    student, teacher = (each.bfloat16() for each in maps(8, 8))
    found = distance(student, teacher)
    assert found.dtype == torch.float32
    assert torch.equal(found, distance(student.float(), teacher.float()))
