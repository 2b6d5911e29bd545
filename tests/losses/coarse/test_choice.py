"""Which logits a loss is given."""

import pytest
import torch

from incseg.losses import CoarseLogits, cross_entropy, enlarge
from incseg.losses.coarse import choice, is_fused
from incseg.losses.coarse.fused import label_losses, teacher_losses
from incseg.upsampling import interpolate


def test_without_kernels_a_loss_enlarges_for_itself() -> None:
    scores = CoarseLogits(torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0)), (8, 9), True)
    labels = torch.zeros(2, 8, 9, dtype=torch.int64)
    assert torch.equal(cross_entropy(scores, labels), cross_entropy(scores.full_size(), labels))
    plain, fused = enlarge(scores, fused=False), enlarge(scores, fused=True)
    assert isinstance(plain, torch.Tensor)
    assert torch.equal(plain, interpolate(scores))
    assert isinstance(fused, torch.Tensor) == (not is_fused(scores))


@pytest.mark.parametrize(
    ("logits", "size", "fused"),
    [
        (torch.zeros(1, 2, 2, 2), (8, 8), True),
        (torch.zeros(1, 2, 2, 2), (7, 8), False),  # hardly larger than the grid
        (torch.zeros(0, 2, 2, 2), (8, 8), False),
        (torch.zeros(1, 2, 2, 2, dtype=torch.float64), (8, 8), False),
    ],
)
def test_kernels_are_for_large_images(
    logits: torch.Tensor, size: tuple[int, int], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "runs_triton", lambda _: True)
    monkeypatch.setattr(choice, "_compiles", lambda _: True)
    assert is_fused(CoarseLogits(logits, size)) == fused
    assert not is_fused(logits)


def test_a_compiler_that_fails_is_told_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler\nand more")

    monkeypatch.setattr(choice, "runs_triton", lambda _: True)
    monkeypatch.setattr(choice, "read_pixels", fails)
    choice._compiles.cache_clear()
    scores = CoarseLogits(torch.zeros(1, 2, 2, 2), (8, 8))
    with pytest.warns(UserWarning, match=r"without fused kernels.*Failed to find C compiler\)"):
        assert not is_fused(scores)
    assert isinstance(enlarge(scores, fused=True), torch.Tensor)
    choice._compiles.cache_clear()


def test_kernels_are_given_what_belongs_together() -> None:
    scores = CoarseLogits(torch.zeros(2, 3, 4, 4), (16, 16))
    with pytest.raises(ValueError, match=r"labels must be \(B, H, W\) = \(2, 16, 16\): got \(2, 16, 15\)"):
        label_losses(scores, torch.zeros(2, 16, 15, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"student's grid, \(2, 3, 4, 4\) for \(16, 16\): got \(2, 3, 4, 5\)"):
        teacher_losses(scores, CoarseLogits(torch.zeros(2, 3, 4, 5), (16, 16)), merge_new=True)
    with pytest.raises(ValueError, match=r"got \(2, 2, 4, 4\) for \(16, 12\)"):
        teacher_losses(scores, CoarseLogits(torch.zeros(2, 2, 4, 4), (16, 12)), merge_new=True)
