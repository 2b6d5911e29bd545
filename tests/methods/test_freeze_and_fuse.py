"""Methods that act on weights: EWF fuses, DFT freezes."""

import copy
import math

import torch

from incseg import methods
from incseg.methods.freeze_and_fuse import FrozenBody, WeightFusion
from incseg.models import Architecture, Segmenter
from incseg.protocol import steps
from samples import context

FIRST, SECOND = steps("2-2", 4)


def pair() -> tuple[Segmenter, Segmenter]:
    torch.manual_seed(0)
    student = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3])
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    student.trained_head.grow(2)
    return student, teacher


def test_fusion_mixes_all_the_teacher_has_and_leaves_the_new_head() -> None:
    student, teacher = pair()
    part = WeightFusion()
    part.begin(context(SECOND, student, teacher, batches=list))
    assert [p.requires_grad for p in student.classifier.parameters()] == [False, False, True, True]
    with torch.no_grad():
        for tensor in student.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(1.0)
    moved = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    part.end(context(SECOND, student, teacher, batches=list))
    alpha = math.sqrt(2 / (2 + 3))
    old = teacher.state_dict()
    for name, tensor in student.state_dict().items():
        if name in old and tensor.is_floating_point():
            torch.testing.assert_close(tensor, (1 - alpha) * old[name] + alpha * moved[name])
        else:
            assert torch.equal(tensor, moved[name])


def test_fusion_leaves_step_0_alone_and_shares_it() -> None:
    student, _ = pair()
    before = copy.deepcopy(student.state_dict())
    part = WeightFusion()
    part.end(context(FIRST, student, None, batches=list))
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.state_dict().items())
    assert methods.parse("mib+ucd+ewf").first_step == methods.parse("ft").first_step == ""


def test_the_frozen_body_learns_only_in_its_new_head() -> None:
    student, teacher = pair()
    FrozenBody().begin(context(SECOND, student.train(), teacher, batches=list))
    learning = {name for name, p in student.named_parameters() if p.requires_grad}
    assert learning == {"classifier.heads.1.weight", "classifier.heads.1.bias"}
    before = copy.deepcopy(student.state_dict())
    student(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8))
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.state_dict().items())
