"""MBS: the teacher's background in labels, outputs and features."""

import torch

import reference
from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.protocol import Step, steps

SECOND: Step = steps("2-2", 4)[1]


def view_of(method: methods.Method) -> View:
    generator = torch.Generator().manual_seed(3)
    labels = torch.tensor([0, 0, 0, 3, 4, 255])[torch.randint(0, 6, (2, 6, 6), generator=generator)]

    def outputs(classes: int) -> Outputs:
        embedding = torch.randn(2, 5, 6, 6, generator=generator)
        return Outputs(2 * torch.randn(2, classes, 6, 6, generator=generator), embedding, [])

    return method.view(Batch(torch.zeros(2, 3, 6, 6), labels), outputs(5), outputs(3), SECOND)


def rows(maps: torch.Tensor) -> list[list[float]]:
    found: list[list[float]] = maps.movedim(1, -1).flatten(0, 2).tolist()
    return found


def test_all_terms_equal_their_definition() -> None:
    method = methods.parse("mbs", {"mbs": {"kd_weight": 25.0, "feature_weight": 3.0}})
    view = view_of(method)
    truth, probs = view.labels.flatten().tolist(), [reference.softmax(z) for z in rows(view.teacher_logits)]
    targets = [reference.selective_label(y, q, 0.7) for y, q in zip(truth, probs, strict=True)]
    assert view.targets.flatten().tolist() == targets
    assert {0, 1, 2, 3, 4, 255} == set(targets)
    assert any(y == 0 and target == 255 for y, target in zip(truth, targets, strict=True))
    student = rows(view.student_logits)
    assert view.teacher is not None
    features = rows(view.student.embedding), rows(view.teacher.embedding)
    weights = [reference.trust(y, 3, q[0]) for y, q in zip(targets, probs, strict=True)]
    expected = {
        "segmentation": reference.cross_entropy(student, targets),
        "distillation": 25 * reference.label_guided_distillation(student, rows(view.teacher_logits), truth),
        "features": 3 * reference.weighted_feature_distillation(*features, weights),
    }
    terms = method.losses(view)
    assert set(terms) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], torch.tensor(value), rtol=1e-5, atol=1e-6)


def test_it_composes_with_contrast_fusion_and_another_initialisation() -> None:
    names = [type(part).__name__ for part in methods.parse("mbs+ucd+ewf+nest").parts]
    assert names[:3] == ["SelectiveCrossEntropy", "LabelGuidedDistillation", "TrustedFeatures"]
    assert names[3:] == ["ContrastiveDistillation", "WeightFusion", "TunedInitialisation"]
