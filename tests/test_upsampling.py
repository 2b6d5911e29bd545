"""Bilinear interpolation by matrix products, against a loop over pixels and against PyTorch's own."""

import pytest
import torch

import reference
from incseg.upsampling import CoarseLogits, interpolate

SIZES = [  # of the grid and of the image
    ((3, 4), (48, 64)),
    ((3, 5), (7, 11)),
    ((1, 1), (5, 17)),
    ((1, 4), (9, 4)),
    ((6, 7), (4, 3)),
    ((5, 3), (1, 1)),
    ((4, 4), (4, 4)),
    ((2, 2), (2, 33)),
]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("grid", "size"), SIZES)
def test_every_size(grid: tuple[int, int], size: tuple[int, int], align_corners: bool) -> None:
    logits = torch.randn(2, 3, *grid, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = CoarseLogits(logits, size, align_corners)
    expected = [[reference.bilinear(channel, *size, align_corners) for channel in image] for image in logits.tolist()]
    torch.testing.assert_close(scores.full_size(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scores.full_size(), interpolate(scores), rtol=1e-12, atol=1e-12)
    assert scores.full_size().shape == scores.shape
    assert scores.numel() == scores.full_size().numel()


@pytest.mark.parametrize("align_corners", [False, True])
def test_the_gradient(align_corners: bool) -> None:
    logits = torch.randn(1, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: CoarseLogits(z, (7, 9), align_corners).full_size(), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_less_accurate_than_pytorch(dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(2, 4, 5, 6, generator=torch.Generator().manual_seed(0))).to(dtype)
    true = interpolate(CoarseLogits(logits.double(), (37, 50)))
    ours, theirs = (
        torch.linalg.vector_norm(found.double() - true)
        for found in (CoarseLogits(logits, (37, 50)).full_size(), interpolate(CoarseLogits(logits, (37, 50))))
    )
    assert ours <= 2 * theirs
    assert CoarseLogits(logits, (37, 50)).full_size().dtype == torch.float32


def test_autocast_and_inference_mode_change_nothing() -> None:
    logits = torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scores = CoarseLogits(logits, (13, 14))
    with torch.inference_mode():
        first = scores.full_size().clone()
    with torch.autocast("cpu"):
        again = scores.full_size()
    assert torch.equal(first, again.detach())
    again.sum().backward()  # what was kept from inference mode would refuse
