"""SSUL: labels with an unknown class, and what is frozen."""

import copy
import re
from dataclasses import replace

import pytest
import torch

import reference
from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.errors import InputError
from incseg.models import Architecture, Segmenter
from incseg.protocol import Step, steps
from samples import context

FIRST, SECOND = steps("2-2", 4)
BRANCHED = Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}, head="branched")


def view_of(step: Step, method: methods.Method, *, with_maps: bool) -> View:
    generator = torch.Generator().manual_seed(3)
    labels = torch.tensor([0, 0, 0, step.new[0], step.new[1], 255])[torch.randint(0, 6, (2, 6, 6), generator=generator)]
    logits = [3 * torch.randn(2, n, 6, 6, generator=generator) for n in (step.num_classes + 1, step.old_classes)]
    student, teacher = (Outputs(z, z, [], head="branched") for z in logits)
    salient = torch.rand(2, 6, 6, generator=generator) < 0.5 if with_maps else None
    batch = Batch(torch.zeros(2, 3, 6, 6), labels, salient=salient)
    return method.view(batch, student, teacher if step.old else None, step)


@pytest.mark.parametrize("with_maps", [False, True])
@pytest.mark.parametrize("step", [FIRST, SECOND])
def test_background_is_an_old_class_or_unknown_or_not_salient(step: Step, with_maps: bool) -> None:
    method = methods.parse("ssul")
    view = view_of(step, method, with_maps=with_maps)
    maps = [None] * view.labels.numel() if view.salient is None else view.salient.flatten().tolist()
    taught = None if view.teacher is None else view.teacher_logits.movedim(1, -1).flatten(0, 2).tolist()
    expected = [
        reference.unknown_label(y, None if taught is None else taught[i], 0.7, step.num_classes, maps[i])
        for i, y in enumerate(view.labels.flatten().tolist())
    ]
    assert view.targets.flatten().tolist() == expected
    assert set(expected) == {*step.seen, step.num_classes, 255, *([0] if with_maps else [])}
    channels = view.student_logits.movedim(1, -1).flatten(0, 2).tolist()
    loss = reference.binary_cross_entropy(channels, expected, range(step.num_classes + 1))
    assert float(method.losses(view)["segmentation"]) == pytest.approx(loss, rel=1e-5)


def test_after_step_0_the_newest_branch_and_unknown_learn_alone() -> None:
    torch.manual_seed(0)
    student = Segmenter(BRANCHED, [3]).train()
    methods.parse("ssul").begin(context(FIRST, student, None))
    assert all(parameter.requires_grad for parameter in student.parameters())
    teacher = copy.deepcopy(student).eval()
    student.trained_head.grow(2)
    methods.parse("ssul").begin(context(SECOND, student.train(), teacher))
    learning = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    assert learning == {
        f"classifier.heads.{branch}.{layer}" for branch in (0, 3) for layer in ("0.weight", "3.weight", "3.bias")
    }
    before = {name: buffer.clone() for name, buffer in student.named_buffers()}
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    scores = student(images).logits
    assert scores.shape[1] == 5 + 1
    torch.testing.assert_close(scores[:, 3:5], scores[:, 5:].expand(-1, 2, -1, -1))  # as what is unknown
    assert all(torch.equal(buffer, before[name]) for name, buffer in student.named_buffers())


def test_other_heads_other_methods_and_too_many_classes_are_refused() -> None:
    with pytest.raises(InputError, match="'ssul' needs a branched head, and this network has a softmax head"):
        methods.require_head(methods.parse("ssul"), "softmax")
    for name in set(methods.method_names()) - {"ssul"}:
        with pytest.raises(InputError, match=rf"'{re.escape(name)}' needs a .* head .* use ssul, or sums"):
            methods.require_head(methods.parse(name), "branched")
    many = [replace(SECOND, new=tuple(range(3, 255)))]
    with pytest.raises(InputError, match="'ssul' learns at most 253 classes, one fewer than others, and there are 254"):
        methods.parse("ssul").check(many, ["background"] + ["thing"] * 254)
