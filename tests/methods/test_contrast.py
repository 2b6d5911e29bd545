"""UCD on maps: which pixels are anchors and contrast. Each row of the paper's ablations is a method or a setting."""

import copy
from dataclasses import replace

import pytest
import torch

import reference
from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.errors import InputError
from incseg.methods.contrast import ContrastiveDistillation, PixelContrast, SegmentContrast, StudentContrast
from incseg.methods.part import Contrast
from incseg.methods.pixels import keep_regions
from incseg.models import Architecture, Segmenter
from incseg.protocol import Step, steps
from samples import context

FIRST, SECOND = steps("2-2", 4)  # channels 1, 2 are old, 3, 4 new
LABELS = torch.tensor([0, 1, 2, 3, 4, 255])


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ("old", [-1, 1, 2, -1, -1, -1]),
        ("old+new", [-1, 1, 2, 3, 4, -1]),
        ("new+background", [0, -1, -1, 3, 4, -1]),
        ("old+new+background", [0, 1, 2, 3, 4, -1]),
    ],
)
def test_regions_of_a_step(regions: str, expected: list[int]) -> None:
    assert keep_regions(LABELS, regions, SECOND).tolist() == expected


def test_unknown_regions_are_refused() -> None:
    with pytest.raises(InputError, match="a sum of old, new, background"):
        methods.parse("ucd", {"ucd": {"student": "old+bg"}})


def make_view(step: Step = SECOND) -> View:
    generator = torch.Generator().manual_seed(9)
    truth = torch.tensor([0, 0, 3, 4, 255])[torch.randint(0, 5, (2, 3, 3), generator=generator)]
    labels = truth.repeat_interleave(16, 1).repeat_interleave(16, 2)

    def random(channels: int) -> torch.Tensor:
        return torch.randn(2, channels, 3, 3, dtype=torch.float64, generator=generator)

    student, teacher = Outputs(random(5), random(6), []), Outputs(3 * random(3), random(6), [])
    return View(Batch(torch.zeros(2, 3, 1, 1, dtype=torch.uint8), labels), student, teacher, step)


def pixels(outputs: Outputs) -> list[list[float]]:
    rows: list[list[float]] = outputs.embedding.movedim(1, -1).flatten(0, 2).tolist()
    return rows


def test_pixel_contrast_uses_the_student_and_the_ground_truth_alone() -> None:
    view = make_view()
    truth = view.labels[:, 8::16, 8::16].flatten().tolist()
    labels = [-1 if y == 255 else y for y in truth]
    expected = reference.contrastive_distillation(pixels(view.student), labels, [], [], None, None, 0.07, "negatives")
    assert PixelContrast(weight=1.0).losses(view)["contrast"].item() == pytest.approx(expected, rel=1e-6)


def test_pixels_are_contrasted_at_the_first_step_only_where_that_is_asked_for() -> None:
    view = replace(make_view(FIRST), teacher=None)
    plain, shaping = (methods.parse("pixel", {"pixel": {"from_the_start": asked}}) for asked in (False, True))
    assert "contrast" not in plain.losses(view)
    assert shaping.losses(view)["contrast"].item() > 0
    assert plain.first_step != shaping.first_step, "runs with one must not begin with the step 0 of the other"


def test_segment_contrast_uses_the_means_per_image_and_class() -> None:
    view = make_view()
    means: list[list[float]] = []
    labels: list[int] = []
    for image in range(2):
        features = view.student.embedding[image].flatten(1).T.tolist()
        truth = view.labels[image, 8::16, 8::16].flatten().tolist()
        for c, mean in reference.class_means(features, truth, 5).items():
            means.append(mean)
            labels.append(c)
    expected = reference.contrastive_distillation(means, labels, [], [], None, None, 0.07, "negatives")
    assert expected != 0
    assert SegmentContrast(weight=1.0).losses(view)["contrast"].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("part", [PixelContrast(), SegmentContrast()])
def test_both_rest_at_step_0(part: StudentContrast) -> None:
    assert part.losses(make_view(FIRST)) == {}


@pytest.mark.parametrize(
    ("student", "teacher"),
    [("old+new+background", "old+new+background"), ("old+new", "old+new"), ("old+new", "old")],
)
@pytest.mark.parametrize("uncertainty", [True, False])
def test_rows_of_the_anchor_and_contrast_table(student: str, teacher: str, uncertainty: bool) -> None:
    view = make_view()
    assert view.teacher is not None
    truth = view.labels[:, 8::16, 8::16].flatten().tolist()
    probs = view.teacher.logits.softmax(1).movedim(1, -1).flatten(0, 2).tolist()
    extended = [reference.extended_pixel(y, p, 5) for y, p in zip(truth, probs, strict=True)]
    kinds = {0: "background", 1: "old", 2: "old", 3: "new", 4: "new", 255: "ignored"}
    chosen = [[y if kinds[y] in regions.split("+") else -1 for y, _ in extended] for regions in (student, teacher)]
    sigma = [row for _, row in extended] if uncertainty else None
    expected = reference.contrastive_distillation(
        pixels(view.student), chosen[0], pixels(view.teacher), chosen[1], sigma, sigma, 0.07, "negatives"
    )
    part = ContrastiveDistillation(weight=1.0, uncertainty=uncertainty, student=student, teacher=teacher)
    assert part.losses(view)["contrast"].item() == pytest.approx(expected, rel=1e-6)


def test_cd_is_ucd_without_uncertainty() -> None:
    view = make_view()
    plain, told = methods.parse("mib+cd"), methods.parse("mib+ucd", {"ucd": {"uncertainty": False}})
    assert [type(p).__name__ for p in plain.parts] == [type(p).__name__ for p in told.parts]
    terms = [m.losses(m.view(view.batch, view.student, view.teacher, SECOND)) for m in (plain, told)]
    assert terms[0] == terms[1]


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

    fine = View(coarse.batch, finer(coarse.student), finer(coarse.teacher), SECOND)
    part = ContrastiveDistillation()
    torch.testing.assert_close(part.losses(fine)["contrast"], part.losses(coarse)["contrast"])


def test_a_batch_without_foreground_costs_nothing() -> None:
    view = make_view()
    assert view.teacher is not None
    teacher = view.teacher._replace(logits=torch.tensor([9.0, 0, 0]).view(1, 3, 1, 1).expand(2, 3, 3, 3))
    labels = torch.zeros_like(view.labels)
    empty = View(Batch(view.batch.images, labels), view.student, teacher, SECOND)
    assert ContrastiveDistillation().losses(empty)["contrast"].item() == 0


def test_alone_it_trains_on_the_extended_map_at_full_size() -> None:
    view = make_view()
    method = methods.parse("ucd")
    relabelled = method.view(view.batch, view.student, view.teacher, SECOND)
    foreground = (view.labels != 0) & (view.labels != 255)
    assert torch.equal(relabelled.targets[foreground], view.labels[foreground])
    assert torch.equal(relabelled.targets == 255, view.labels == 255)
    assert set(relabelled.targets[view.labels == 0].unique().tolist()) == {0, 1, 2}


def test_as_released_the_mean_is_over_paired_anchors_and_ignored_pixels_are_background() -> None:
    view = make_view()
    labels = view.labels.where(view.labels != 4, 255)
    labels[0, :16, :16] = 4  # the only pixel of its class: an anchor without a positive
    view = View(view.batch._replace(labels=labels), view.student, view.teacher, SECOND)
    assert view.teacher is not None
    truth = [0 if y == 255 else y for y in labels[:, 8::16, 8::16].flatten().tolist()]
    probs = view.teacher.logits.softmax(1).movedim(1, -1).flatten(0, 2).tolist()
    extended = [reference.extended_pixel(y, p, 5) for y, p in zip(truth, probs, strict=True)]
    chosen = [[y if y in kept else -1 for y, _ in extended] for kept in ((1, 2, 3, 4), (1, 2))]
    sigma = [row for _, row in extended]
    expected, over_all = (
        reference.contrastive_distillation(
            pixels(view.student), chosen[0], pixels(view.teacher), chosen[1], sigma, sigma, 0.07, "negatives", paired
        )
        for paired in (True, False)
    )
    assert expected > 1.01 * over_all > 0
    part = next(p for p in methods.parse("ucd", {"ucd": {"released": True}}).parts if isinstance(p, Contrast))
    assert isinstance(part, ContrastiveDistillation)
    assert part.detach_contrast
    assert part.losses(view)["contrast"].item() == pytest.approx(0.01 * expected, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "frozen_at", "first_step"),
    [({}, [], ""), ({"frozen_head": True}, [1], ""), ({"released": True}, [0, 1], "first head as initialised")],
)
def test_the_first_head_is_frozen_after_step_0_or_from_the_start(
    settings: dict[str, bool], frozen_at: list[int], first_step: str
) -> None:
    method = methods.parse("mib+ucd", {"ucd": settings})
    assert method.first_step == first_step
    student = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3])
    teacher = None
    for step in (FIRST, SECOND):
        student.requires_grad_(True)
        method.begin(context(step, student, teacher))
        trained = [head.weight.requires_grad for head in student.trained_head.heads]
        assert trained == [step.index not in frozen_at, True][: step.index + 1]
        teacher = copy.deepcopy(student)
        student.trained_head.grow(2)


def test_where_every_old_class_is_labelled_the_ground_truth_is_the_extended_map() -> None:
    """Background is then background: no anchor, whatever the teacher calls it, and no target of the cross-entropy."""
    step = replace(SECOND, labelled_old=SECOND.old, complete=True)
    view = make_view(step)
    truth = view.labels[:, 8::16, 8::16].flatten().tolist()
    anchors = [-1 if y in (0, 255) else y for y in truth]
    contrast = [y if y in step.old else -1 for y in anchors]
    assert view.teacher is not None
    expected = reference.contrastive_distillation(
        pixels(view.student), anchors, pixels(view.teacher), contrast, None, None, 0.07, "negatives"
    )
    part = ContrastiveDistillation(weight=1.0, uncertainty=False)
    assert part.losses(view)["contrast"].item() == pytest.approx(expected, rel=1e-6)
    method = methods.parse("ucd")
    assert torch.equal(method.view(view.batch, view.student, view.teacher, step).targets, view.labels)
