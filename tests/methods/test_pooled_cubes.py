"""RCIL's losses on PLOP's layers."""

import math

import torch

from incseg import losses, methods
from incseg.batch import Batch, Outputs, View
from incseg.protocol import steps

SECOND = steps("2-2", 4)[1]


def test_cubes_of_six_layers_in_space_and_five_over_channels() -> None:
    generator = torch.Generator().manual_seed(3)

    def outputs(classes: int) -> Outputs:
        stages = [torch.randn(2, 4, 8 // s, 8 // s, generator=generator) for s in (1, 1, 2, 2, 4)]
        shapes = [(2, classes, 4, 4), (2, 6, 4, 4)]
        logits, embedding = (torch.randn(shape, generator=generator) for shape in shapes)
        return Outputs(logits, embedding, [], raw_stages=stages)

    student, teacher = outputs(5), outputs(3)
    labels = torch.zeros(2, 16, 16, dtype=torch.int64)
    view = View(Batch(torch.zeros(2, 3, 16, 16, dtype=torch.uint8), labels), student, teacher, SECOND)
    terms = methods.parse("rcil", {"rcil": {"cube_weight": 0.3, "last_weight": 0.2}}).losses(view)
    assert set(terms) == {"segmentation", "distillation", "spatial", "channel"}
    torch.testing.assert_close(
        terms["distillation"], 100 * losses.unbiased_distillation(view.student_logits, view.teacher_logits)
    )
    merged = torch.cat([student.logits[:, :1] + student.logits[:, 3:].sum(1, keepdim=True), student.logits[:, 1:3]], 1)
    pairs = [*zip(student.raw_stages[1:], teacher.raw_stages[1:], strict=True), (student.embedding, teacher.embedding)]
    spatial = [losses.spatial_cube_distance(s, t) for s, t in [*pairs, (merged, teacher.logits)]]
    channel = [losses.channel_cube_distance(s, t) for s, t in pairs]
    for name, distances in (("spatial", spatial), ("channel", channel)):
        expected = (0.3 * sum(distances[:-1]) + 0.2 * distances[-1]) / len(distances)
        torch.testing.assert_close(terms[name], math.sqrt(5 / 2) * expected)


def test_in_a_sum_the_other_method_wins() -> None:
    parts = {type(part).__name__: part for part in methods.parse("rcil+mib").parts}
    assert list(parts) == ["PooledCubes", "UnbiasedCrossEntropy", "UnbiasedDistillation", "BalancedInitialisation"]
    assert parts["UnbiasedDistillation"] == methods.parse("mib").parts[1]
