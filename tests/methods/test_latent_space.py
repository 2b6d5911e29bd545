"""SDR: its terms against their definitions, and two processes against one on the joined batch."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import reference
from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.methods.latent_space import Prototypes, Sparsity
from incseg.methods.unbiased import UnbiasedDistillation
from incseg.models import Architecture, Segmenter
from incseg.protocol import Step, steps
from processes import PROCESSES, spawn

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
    part = Prototypes(matching=1.0)
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


def test_a_bad_iteration_leaves_prototypes_as_they_were_also_where_classes_join() -> None:
    method = methods.parse("sdr")
    part = next(part for part in method.parts if isinstance(part, Prototypes))
    for bad, step in ((True, FIRST), (False, FIRST), (True, FIRST), (True, SECOND)):
        kept = dict(part.memory)
        method.observe(make_view(step, 1), STUDENT, torch.tensor(float(bad)))
        if bad:
            assert part.memory.keys() == kept.keys()
            assert all(torch.equal(part.memory[key], kept[key]) for key in kept)
    assert part.memory["sums"].shape == (3, 5)


def test_the_classes_of_the_ground_truth_go_to_their_running_prototypes_and_apart() -> None:
    part, earlier, view = Prototypes(1.0, 1.0, 1.0), make_view(SECOND, 5), make_view(SECOND, 4)
    part.observe(earlier, STUDENT)
    (rows_before, truth_before), (rows, truth) = pixels(earlier), pixels(view)
    seen = reference.class_means([*rows_before, *rows], [*truth_before, *truth], 5)
    assert {0, 3, 4} <= set(truth)
    prototypes = [seen[c] if c in (3, 4) else [0.0] * 5 for c in range(5)]  # background has none
    terms = part.losses(view)
    assert float(terms["attraction"]) == pytest.approx(reference.attraction(rows, truth, prototypes), rel=1e-5)
    means = list(reference.class_means(rows, truth, 5).values())
    assert float(terms["repulsion"]) == pytest.approx(reference.repulsion(means), rel=1e-5)


@pytest.mark.parametrize("step", [FIRST, SECOND])
def test_only_sparsity_acts_in_step_0(step: Step) -> None:
    view, method = make_view(step, 4), methods.parse("sdr")
    if step.index:
        method.parts[2].observe(make_view(FIRST, 1), STUDENT)
    rows, truth = pixels(view)
    terms = method.losses(method.view(view.batch, view.student, view.teacher, step))
    assert float(terms["sparsity"]) == pytest.approx(1e-3 * reference.sparsity(rows, truth, step.num_classes), rel=1e-5)
    shaping = {"prototypes", "attraction", "repulsion"} & set(terms)
    assert len(shaping) == (3 if step.index else 0)


def test_in_a_sum_with_mib_its_losses_take_over() -> None:
    alone, summed = methods.parse("sdr"), methods.parse("mib+sdr")
    weights = [[p.weight for p in m.parts if isinstance(p, UnbiasedDistillation)] for m in (alone, summed)]
    assert weights == [[100.0], [10.0]]
    assert "BalancedInitialisation" in [type(p).__name__ for p in summed.parts]
    assert "sparsity" in alone.first_step


WORLD = 2
TERMS = ["prototypes", "attraction", "repulsion", "sparsity"]


def joined_view(kind: str, network: nn.Module) -> View:
    """Four images, of which the first two belong to process 0; a 1×1 convolution stands for the network.

    In "uneven" the classes are spread unevenly over the processes, in "empty rank" the second one has only background.
    """
    generator = torch.Generator().manual_seed(7)
    classes = torch.tensor([0, 3, 3, 4])
    labels = classes[torch.randint(0, 4, (2 * WORLD, 4, 4), generator=generator)]
    labels[2:] = torch.where(labels[2:] == 3, 4, labels[2:])
    stage = torch.randn(2 * WORLD, 5, 4, 4, dtype=torch.float64, generator=generator)
    logits = 3 * torch.randn(2 * WORLD, 3, 4, 4, dtype=torch.float64, generator=generator)
    if kind == "empty rank":
        labels[2:] = 0
        logits[2:, 0] = 20
    batch = Batch(torch.zeros(2 * WORLD, 3, 4, 4, dtype=torch.uint8), labels)
    student = Outputs(torch.zeros(2 * WORLD, 5, 4, 4), torch.zeros(2 * WORLD, 4, 4, 4), [network(stage).exp()])
    return View(batch, student, Outputs(logits, torch.zeros(2 * WORLD, 4, 4, 4), []), SECOND)


def share_of(view: View, rank: int) -> View:
    assert view.teacher is not None
    own = slice(2 * rank, 2 * rank + 2)
    student = view.student._replace(stages=[stage[own] for stage in view.student.stages])
    teacher = view.teacher._replace(logits=view.teacher.logits[own])
    return View(Batch(view.batch.images[own], view.labels[own]), student, teacher, SECOND)


def make_network() -> nn.Conv2d:
    torch.manual_seed(3)
    return nn.Conv2d(5, 5, 1).double()


def terms_of(view: View) -> dict[str, Tensor]:
    part = Prototypes(1.0, 1.0, 1.0)
    generator = torch.Generator().manual_seed(1)
    part.memory = {"sums": torch.randn(3, 5, dtype=torch.float64, generator=generator), "counts": torch.ones(3)}
    return {**part.losses(view), **Sparsity(1.0).losses(view)}


def worker(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    found = {}
    for kind in ("uneven", "empty rank"):
        for name in TERMS:
            model = DistributedDataParallel(make_network())
            own = share_of(joined_view(kind, nn.Identity()), rank)
            own = replace(own, student=own.student._replace(stages=[model(own.student.stages[0].log()).exp()]))
            value = terms_of(own)[name]
            value.backward()
            found[kind, name] = (value.detach(), model.module.weight.grad)
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@PROCESSES
def test_two_processes_equal_one_on_the_joined_batch(tmp_path: Path) -> None:
    spawn(worker, tmp_path, WORLD)
    by_rank = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(WORLD)]
    for kind, name in by_rank[0]:
        model = make_network()
        expected = terms_of(joined_view(kind, model))[name]
        expected.backward()
        assert expected > 0
        values = torch.stack([found[kind, name][0] for found in by_rank])
        torch.testing.assert_close(values.mean(), expected.detach(), msg=f"{name}, {kind}")
        for found in by_rank:
            torch.testing.assert_close(found[kind, name][1], model.weight.grad, msg=f"{name}, {kind}")
