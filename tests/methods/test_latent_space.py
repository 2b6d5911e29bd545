import pytest
import torch

import reference
from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.methods.latent_space import LatentStructure, PrototypeMatching
from incseg.methods.unbiased import UnbiasedDistillation
from incseg.models import Architecture, Segmenter
from incseg.protocol import Step, steps

FIRST, SECOND = steps("2-2", 4)
STUDENT = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3])


def make_view(step: Step, seed: int) -> View:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.tensor([0, *step.new, 255])[torch.randint(0, 2 + len(step.new), (2, 3, 3), generator=generator)]
    labels = truth.repeat_interleave(8, 1).repeat_interleave(8, 2)

    def outputs(classes: int) -> Outputs:
        stage = torch.randn(2, 5, 3, 3, generator=generator)
        return Outputs(3 * torch.randn(2, classes, 3, 3, generator=generator), torch.randn(2, 4, 3, 3), [stage])

    teacher = outputs(step.old_classes) if step.index else None
    return View(Batch(torch.zeros(2, 3, 24, 24, dtype=torch.uint8), labels), outputs(step.num_classes), teacher, step)


def pixels(view: View) -> tuple[list[list[float]], list[int]]:
    """Features and ground truth, image after image: the order in which batches of more than one image go wrong."""
    stage = view.student.stages[-1]
    rows = [stage[b, :, y, x].tolist() for b in range(2) for y in range(3) for x in range(3)]
    labels = [int(view.labels[b, 8 * y + 4, 8 * x + 4]) for b in range(2) for y in range(3) for x in range(3)]
    return rows, labels


def extended(view: View) -> list[int]:
    assert view.teacher is not None
    probs = view.teacher.logits.softmax(1).movedim(1, -1).flatten(0, 2).tolist()
    truth = pixels(view)[1]
    return [reference.extended_pixel(y, p, 5)[0] for y, p in zip(truth, probs, strict=True)]


def test_prototypes_are_running_means_over_batches_and_matching_holds_old_classes_to_them() -> None:
    part = PrototypeMatching(weight=1.0)
    views = [make_view(FIRST, seed) for seed in (1, 2)]
    for view in views:
        part.observe(view, STUDENT)
    rows = [row for view in views for row in pixels(view)[0]]
    labels = [label for view in views for label in pixels(view)[1]]
    prototypes = reference.class_means(rows, labels, 3)
    view = make_view(SECOND, 3)
    rows, found = pixels(view)[0], extended(view)
    means = reference.class_means(rows, [y if y in (1, 2) else -1 for y in found], 3)
    assert set(means) == {1, 2}
    expected = sum(reference.squared_distance(means[c], prototypes[c]) / 5 for c in means) / len(means)
    assert float(part.losses(view)["prototypes"]) == pytest.approx(expected, rel=1e-5)
    part.observe(view, STUDENT)
    assert part.memory["sums"].shape == (5, 5), "new classes join, old prototypes stay"
    old = part.memory["sums"][1] / part.memory["counts"][1]
    assert old.tolist() == pytest.approx(prototypes[1], rel=1e-5)


@pytest.mark.parametrize("step", [FIRST, SECOND])
def test_structure_is_shaped_on_ground_truth_and_the_teachers_opinion(step: Step) -> None:
    view = make_view(step, 4)
    rows, truth = pixels(view)
    labels = [y if y not in (0, 255) else -1 for y in (extended(view) if step.index else truth)]
    terms = LatentStructure(1.0, 1.0, 1.0).losses(view)
    classes = step.num_classes
    assert float(terms["attraction"]) == pytest.approx(reference.attraction(rows, labels, classes), rel=1e-5)
    assert float(terms["sparsity"]) == pytest.approx(reference.sparsity(rows, labels, classes), rel=1e-5)
    means = list(reference.class_means(rows, labels, classes).values())
    assert float(terms["repulsion"]) == pytest.approx(reference.repulsion(means), rel=1e-5)


def test_in_a_sum_with_mib_its_losses_take_over() -> None:
    alone, summed = methods.parse("sdr"), methods.parse("mib+sdr")
    weights = [[p.weight for p in m.parts if isinstance(p, UnbiasedDistillation)] for m in (alone, summed)]
    assert weights == [[100.0], [10.0]]
    assert "BalancedInitialisation" in [type(p).__name__ for p in summed.parts]
    assert "latent structure" in alone.first_step
