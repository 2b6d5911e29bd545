"""The UCD term on maps: which pixels are anchors, which are the teacher's, and with which labels."""

import pytest
import torch

import reference
from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.methods.contrast import ContrastiveDistillation
from incseg.protocol import steps

STEP = steps("2-2", 4)[1]  # channels 1, 2 are old, 3, 4 new


def make_view(cells: int = 3, stride: int = 16) -> View:
    generator = torch.Generator().manual_seed(5)
    labels = torch.tensor([0, 0, 3, 4, 255])[torch.randint(0, 5, (2, cells, cells), generator=generator)]
    labels = labels.repeat_interleave(stride, 1).repeat_interleave(stride, 2)

    def random(channels: int) -> torch.Tensor:
        return torch.randn(2, channels, cells, cells, dtype=torch.float64, generator=generator)

    student, teacher = Outputs(random(5), random(6), []), Outputs(3 * random(3), random(6), [])
    return View(Batch(torch.zeros(2, 3, 1, 1, dtype=torch.uint8), labels), student, teacher, STEP)


def expected_loss(view: View, *, uncertainty: bool) -> float:
    assert view.teacher is not None
    truth = view.labels[:, 8::16, 8::16].flatten().tolist()
    probs = view.teacher.logits.softmax(1).movedim(1, -1).flatten(0, 2).tolist()
    extended = [reference.extended_pixel(y, p, 5) for y, p in zip(truth, probs, strict=True)]
    student = view.student.embedding.movedim(1, -1).flatten(0, 2).tolist()
    teacher = view.teacher.embedding.movedim(1, -1).flatten(0, 2).tolist()
    in_r = [i for i, (label, _) in enumerate(extended) if label not in (0, 255)]
    in_s = [i for i in in_r if extended[i][0] in (1, 2)]
    return reference.contrastive_distillation(
        [student[i] for i in in_r], [extended[i][0] for i in in_r],
        [teacher[i] for i in in_s], [extended[i][0] for i in in_s],
        [extended[i][1] for i in in_r] if uncertainty else None,
        [extended[i][1] for i in in_s] if uncertainty else None,
        0.07, "negatives",
    )  # fmt: skip


@pytest.mark.parametrize("uncertainty", [True, False])
def test_the_term_equals_the_paper_on_maps(uncertainty: bool) -> None:
    view = make_view()
    loss = ContrastiveDistillation(weight=1.0, uncertainty=uncertainty).losses(view)["contrast"]
    expected = expected_loss(view, uncertainty=uncertainty)
    assert expected != 0
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_an_embedding_finer_than_the_grid_is_averaged_onto_it() -> None:
    coarse = make_view()
    assert coarse.teacher is not None

    def finer(outputs: Outputs) -> Outputs:
        logits, embedding = (t.repeat_interleave(4, 2).repeat_interleave(4, 3) for t in outputs[:2])
        return Outputs(logits, embedding, [])

    fine = View(coarse.batch, finer(coarse.student), finer(coarse.teacher), STEP)
    part = ContrastiveDistillation()
    torch.testing.assert_close(part.losses(fine)["contrast"], part.losses(coarse)["contrast"])


def test_a_batch_without_foreground_costs_nothing() -> None:
    view = make_view()
    assert view.teacher is not None
    teacher = view.teacher._replace(logits=torch.tensor([9.0, 0, 0]).view(1, 3, 1, 1).expand(2, 3, 3, 3))
    labels = torch.zeros_like(view.labels)
    empty = View(Batch(view.batch.images, labels), view.student, teacher, STEP)
    assert ContrastiveDistillation().losses(empty)["contrast"].item() == 0


def test_alone_it_trains_on_the_extended_map_at_full_size() -> None:
    view = make_view()
    method = methods.parse("ucd")
    relabelled = method.view(view.batch, view.student, view.teacher, STEP)
    foreground = (view.labels != 0) & (view.labels != 255)
    assert torch.equal(relabelled.targets[foreground], view.labels[foreground])
    assert torch.equal(relabelled.targets == 255, view.labels == 255)
    assert set(relabelled.targets[view.labels == 0].unique().tolist()) == {0, 1, 2}
