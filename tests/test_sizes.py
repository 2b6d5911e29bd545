"""Large images are reduced by one rule everywhere, and sizes far from those of training are told."""

import pytest
import torch
from torch.nn import functional as F

from incseg.sizes import far_from_training, reduced_size, resize_images, resize_nearest


@pytest.mark.parametrize(
    ("size", "longest_side", "expected"),
    [((3000, 4000), 1024, (768, 1024)), ((4000, 3000), 1024, (1024, 768)), ((1, 5000), 100, (1, 100))],
)
def test_the_longer_side_is_reduced_and_the_shape_kept(
    size: tuple[int, int], longest_side: int, expected: tuple[int, int]
) -> None:
    assert reduced_size(size, longest_side) == expected
    assert reduced_size(size, None) == reduced_size(size, 5000) == size


@pytest.mark.parametrize("size", [(5, 7), (23, 31), (10, 40), (20, 30)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_ids_are_resized_by_nearest_exact(size: tuple[int, int], dtype: torch.dtype) -> None:
    ids = torch.arange(600).reshape(20, 30) % 200
    expected = F.interpolate(ids[None, None].double(), size=size, mode="nearest-exact")[0, 0].to(dtype)
    assert torch.equal(resize_nearest(ids.to(dtype), size), expected)


def test_images_are_averaged_not_sampled() -> None:
    stripes = torch.tensor([0, 200], dtype=torch.uint8).repeat(32).expand(1, 3, 8, 64)
    small = resize_images(stripes, (2, 16))
    assert small.dtype == torch.uint8
    assert (small.int() - 100).abs().max() <= 15


def test_only_a_factor_of_three_is_told() -> None:
    assert (
        far_from_training(510, 171, "with {}")
        == far_from_training(58, 171, "with {}")
        == far_from_training(9, None, "")
        == ""
    )
    assert "4000 pixels" in far_from_training(4000, 171, "with --longest-side {}")
    assert "23.4 times larger" in far_from_training(4000, 171, "with --longest-side {}")
    assert far_from_training(4000, 171, "with --longest-side {}").endswith("with --longest-side 171.")
    assert "4.0 times smaller" in far_from_training(100, 400, "with --longest-side {}")
