from dataclasses import replace

import torch

from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.losses import cross_entropy, unbiased_cross_entropy, unbiased_distillation
from incseg.protocol import Step


def view(step: Step) -> View:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(2, classes, 4, 4, generator=generator) for classes in (5, 3))
    labels = torch.randint(0, 5, (2, 4, 4), generator=generator)
    images = torch.zeros(2, 3, 4, 4)
    return View(Batch(images, labels), Outputs(student, images, []), Outputs(teacher, images, []), step)


STEP = Step(1, old=(1, 2), new=(3, 4))


def test_labels_are_trusted_if_that_is_wished() -> None:
    seen = view(STEP)
    for settings, known in (({}, None), ({"trust_labels": True}, seen.labels)):
        terms = methods.parse("mib", {"mib": settings}).losses(seen)
        expected = 10 * unbiased_distillation(seen.student_logits, seen.teacher_logits, known)
        torch.testing.assert_close(terms["distillation"], expected)


def test_a_labelled_old_class_is_background_as_in_the_release_unless_the_step_labels_it() -> None:
    for step, learns in ((STEP, False), (Step(1, old=(1, 2), new=(3, 4), labelled_old=(2,)), True)):
        seen = view(step)
        found = methods.parse("mib").losses(seen)["segmentation"]
        as_itself = unbiased_cross_entropy(seen.student_logits, seen.labels, old_classes=3, learn_labelled_old=True)
        assert torch.equal(found, as_itself) is learns


def test_background_hides_no_old_class_where_all_are_labelled() -> None:
    seen = view(replace(STEP, labelled_old=STEP.old, complete=True))
    terms = methods.parse("mib").losses(seen)
    torch.testing.assert_close(terms["segmentation"], cross_entropy(seen.student_logits, seen.labels))
    expected = 10 * unbiased_distillation(seen.student_logits, seen.teacher_logits)  # the teacher's may be a new one
    torch.testing.assert_close(terms["distillation"], expected)
