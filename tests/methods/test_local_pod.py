import math
from dataclasses import replace

import pytest
import torch

import reference
from incseg import losses, methods
from incseg.batch import Batch, Outputs, View
from incseg.losses import cross_entropy, pod_distance
from incseg.methods.local_pod import LocalPod, PseudoLabelCrossEntropy
from incseg.models import Architecture, Segmenter
from incseg.protocol import domain_steps, steps
from samples import context

FIRST, SECOND = steps("2-2", 4)


def make_view() -> View:
    generator = torch.Generator().manual_seed(3)
    labels = torch.tensor([0, 0, 0, 3, 255])[torch.randint(0, 5, (2, 8, 8), generator=generator)]

    def outputs(classes: int) -> Outputs:
        stages = [torch.randn(2, 4, 8 // s, 8 // s, generator=generator) for s in (1, 1, 2, 2, 4)]
        logits = 2 * torch.randn(2, classes, 8, 8, generator=generator)
        return Outputs(logits, torch.randn(2, 6, 2, 2), [], raw_stages=stages)

    return View(Batch(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), labels), outputs(5), outputs(3), SECOND)


@pytest.mark.parametrize("trusts", [False, True])
def test_sure_pixels_are_labelled_and_the_others_ignored(trusts: bool) -> None:
    view = make_view()
    part = PseudoLabelCrossEntropy(trust_labels=trusts)
    part.memory["thresholds"] = torch.tensor([0.5, 0.9, 0.2])
    targets = part.relabel(view)
    assert targets is not None
    probs = view.teacher_logits.softmax(1)
    for b in range(2):
        for y in range(8):
            for x in range(8):
                p = probs[b, :, y, x].tolist()
                named = p.index(max(p))
                entropy = -sum(q * math.log(q) for q in p) / math.log(3)
                truth = int(view.labels[b, y, x])
                sure = entropy <= [0.5, 0.9, 0.2][named] or (trusts and named == 0)
                assert int(targets[b, y, x]) == (truth if truth != 0 else named if sure else 255)
    assert set(targets.unique().tolist()) >= {3, 255}


def test_an_image_counts_by_the_share_of_its_background_that_was_accepted() -> None:
    view = make_view()
    method = methods.Method("plop", (PseudoLabelCrossEntropy(),))
    method.parts[0].memory["thresholds"] = torch.tensor([0.5, 0.9, 0.2])
    view = method.view(view.batch, view.student, view.teacher, SECOND)
    expected = 0.0
    for b in range(2):
        background = view.labels[b] == 0
        share = ((view.targets[b] != 255) & background).sum() / background.sum()
        expected += float(share * cross_entropy(view.student_logits[b : b + 1], view.targets[b : b + 1])) / 2
    assert float(method.losses(view)["segmentation"]) == pytest.approx(expected, rel=1e-5)


def test_pod_compares_four_stages_the_embedding_and_the_logits() -> None:
    view = make_view()
    assert view.teacher is not None
    student, teacher = view.student, view.teacher
    logits = torch.cat([student.logits[:, :1] + student.logits[:, 3:].sum(1, keepdim=True), student.logits[:, 1:3]], 1)
    pairs = [*zip(student.raw_stages[1:], teacher.raw_stages[1:], strict=True), (student.embedding, teacher.embedding)]
    expected = sum(0.01 * pod_distance(a, b) for a, b in pairs) + 0.0005 * pod_distance(logits, teacher.logits)
    loss = LocalPod().losses(view)["pod"]
    torch.testing.assert_close(loss, math.sqrt(5 / 2) * expected / 6)
    by_domain = replace(view, step=domain_steps("1-1", 4, 2)[1], teacher=teacher._replace(logits=student.logits + 1))
    expected = sum(0.01 * pod_distance(a, b) for a, b in pairs) + 0.0005 * pod_distance(
        student.logits, student.logits + 1
    )
    torch.testing.assert_close(LocalPod().losses(by_domain)["pod"], expected / 6)  # no new class: no factor


def test_thresholds_are_the_medians_of_what_the_teacher_names_on_background() -> None:
    torch.manual_seed(0)
    teacher = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3]).eval()
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    labels = torch.zeros(4, 64, 64, dtype=torch.int64)
    labels[:, :32] = 3
    part = PseudoLabelCrossEntropy()
    part.begin(context(SECOND, teacher, teacher, batches=lambda: [Batch(images, labels)]))
    probs = teacher.segment(images).softmax(1)[:, :, 32:]
    entropy = torch.special.entr(probs).sum(1) / math.log(3)
    for c in range(3):
        chosen = entropy[probs.argmax(1) == c]
        median = float(chosen.median()) if len(chosen) else 0.0
        assert abs(float(part.memory["thresholds"][c]) - median) <= 0.011


def test_thresholds_are_measured_in_the_precision_of_training() -> None:
    teacher = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3]).eval()
    seen: list[torch.dtype] = []
    teacher.register_forward_hook(lambda _, __, outputs: seen.append(outputs.embedding.dtype))
    images, labels = torch.zeros(1, 3, 64, 64, dtype=torch.uint8), torch.zeros(1, 64, 64, dtype=torch.int64)
    given = context(SECOND, teacher, teacher, batches=lambda: [Batch(images, labels)])
    PseudoLabelCrossEntropy().begin(replace(given, autocast=lambda: torch.autocast("cpu", torch.bfloat16)))
    assert seen == [torch.bfloat16]


def test_released_thresholds_are_in_released_uncertainty_and_accept_more() -> None:
    torch.manual_seed(0)
    teacher = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3]).eval()
    with torch.no_grad():
        teacher.get_parameter("classifier.heads.0.weight").mul_(30)  # as sure as a trained one
    batch = Batch(torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8), torch.zeros(4, 64, 64, dtype=torch.int64))
    outputs = teacher(batch.images)
    probs = teacher.segment(batch.images).softmax(1)
    accepted = {}
    for kind in ("median", "released"):
        part = methods.parse("plop", {"plop": {"thresholds": kind}}).parts[0]
        part.begin(context(SECOND, teacher, teacher, batches=lambda: [batch]))
        targets = part.relabel(View(batch, outputs, outputs, SECOND))
        assert targets is not None
        accepted[kind] = float((targets != 255).float().mean())
    uncertainty = losses.released_entropy(probs, num_classes=5)
    for c in range(3):
        counts = losses.class_histogram(
            uncertainty[probs.argmax(1) == c], torch.zeros(int((probs.argmax(1) == c).sum())).long(), num_classes=1
        )[0]
        expected = max(reference.released_median(counts.tolist()), 0.001)
        assert float(part.memory["thresholds"][c]) == pytest.approx(expected, rel=1e-4)
    assert accepted["released"] > accepted["median"] + 0.1


def test_at_step_0_it_is_plain() -> None:
    part = PseudoLabelCrossEntropy()
    student = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3])
    part.begin(context(FIRST, student, None, batches=list))
    assert part.memory == {}


def test_with_ucd_the_extended_map_still_comes_from_the_ground_truth() -> None:
    names = [type(part).__name__ for part in methods.parse("plop+ucd").parts]
    assert names == ["PseudoLabelCrossEntropy", "LocalPod", "BalancedInitialisation", "ContrastiveDistillation"]
    view = make_view()
    method = methods.parse("plop+ucd")
    method.parts[0].memory["thresholds"] = torch.tensor([0.5, 0.9, 0.2])
    relabelled = method.view(view.batch, view.student, view.teacher, SECOND)
    alone = methods.parse("ft+ucd")
    torch.testing.assert_close(
        method.losses(relabelled)["contrast"],
        alone.losses(alone.view(view.batch, view.student, view.teacher, SECOND))["contrast"],
    )


def test_nothing_is_pseudo_labelled_where_every_old_class_is_labelled() -> None:
    view, step = make_view(), replace(SECOND, labelled_old=SECOND.old, complete=True)
    method = methods.Method("plop", (PseudoLabelCrossEntropy(),))
    network = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3])
    method.begin(context(step, network, network))
    assert method.memory() == {}
    seen = method.view(view.batch, view.student, view.teacher, step)
    torch.testing.assert_close(method.losses(seen)["segmentation"], cross_entropy(seen.student_logits, seen.labels))
