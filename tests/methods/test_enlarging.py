"""Losses at the size of the image: equal by either interpolation, and as they always were where none is asked for."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.protocol import steps
from incseg.upsampling import CoarseLogits

SECOND = steps("2-2", 4)[1]


def make_view(method: methods.Method, logits: Sequence[Tensor], *, align_corners: bool, fused: bool = False) -> View:
    generator = torch.Generator().manual_seed(3)
    labels = torch.tensor([0, 0, 0, 3, 255])[torch.randint(0, 5, (2, 16, 20), generator=generator)]
    stages = [torch.randn(2, 4, 4, 5, generator=generator) for _ in range(4)]
    student, teacher = (Outputs(z, stages[0], stages, align_corners, stages) for z in logits)
    return method.view(
        Batch(torch.zeros(2, 3, 16, 20, dtype=torch.uint8), labels), student, teacher, SECOND, fused=fused
    )


def make_logits() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    student, teacher = (2 * torch.randn(2, classes, 4, 5, generator=generator) for classes in (5, 3))
    return student.requires_grad_(), teacher


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("name", ["ft", "mib", "lwf", "lwf-mc", "plop", "ucd", "emseg"])
def test_both_interpolations_give_the_same_losses(name: str, align_corners: bool) -> None:
    method = methods.parse(name)
    method.load_memory({"PseudoLabelCrossEntropy.thresholds": torch.tensor([0.5, 0.9, 0.7])})
    found = []
    for fused in (False, True):
        logits = make_logits()
        terms = method.losses(make_view(method, logits, align_corners=align_corners, fused=fused))
        gradient = torch.autograd.grad(torch.stack(list(terms.values())).sum(), logits[0])
        found.append([*terms.values(), *gradient])
    for plain, fused_ in zip(*found, strict=True):
        torch.testing.assert_close(plain, fused_, rtol=1e-5, atol=1e-6)


def test_logits_at_the_size_of_the_image_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = make_logits()
    view = make_view(methods.parse("ft"), logits, align_corners=True)
    expected = F.interpolate(logits[0], size=(16, 20), mode="bilinear", align_corners=True)
    assert torch.equal(view.student_logits, expected)
    assert view.student_logits is view.student_scores
    assert view.teacher_logits.shape == (2, 3, 16, 20)
    coarse = View(view.batch, view.student, view.teacher, SECOND, enlarge=lambda scores: scores)
    assert coarse.student_scores == view.student.scores_for(view.labels)
    assert coarse.teacher_logits is coarse.teacher_logits
    monkeypatch.setattr(CoarseLogits, "full_size", None)
    torch.testing.assert_close(coarse.teacher_logits, view.teacher_logits)
