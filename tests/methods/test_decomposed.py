"""DKD: its terms against their definitions, and heads that begin as the auxiliary classifier ended."""

import copy
import math

import pytest
import torch

import reference
from incseg import methods
from incseg.batch import Batch
from incseg.errors import InputError
from incseg.methods.decomposed import AuxiliaryInitialisation
from incseg.models import Architecture, Segmenter
from incseg.protocol import steps
from samples import context

FIRST, SECOND = steps("2-2", 4)


def make_student() -> Segmenter:
    torch.manual_seed(0)
    architecture = Architecture(encoder="test_resnet", head="sigmoid", decoder_options={"decoder_channels": 8})
    return Segmenter(architecture, [3]).double().eval()


def rows(tensor: torch.Tensor) -> list[list[float]]:
    found: list[list[float]] = tensor.movedim(1, -1).flatten(0, 2).tolist()
    return found


@pytest.mark.parametrize("text", ["dkd", "dkd+ucd"])
def test_its_terms_equal_their_definitions(text: str) -> None:
    student, method = make_student(), methods.parse(text)
    method.begin(context(FIRST, student, None))
    method.end(context(FIRST, student, None))
    teacher = copy.deepcopy(student).requires_grad_(False)
    student.trained_head.grow(2)
    student.double()  # also what has joined it
    with torch.no_grad():
        student.trained_head.heads[0].get_parameter("weight").mul_(-2)
    method.begin(context(SECOND, student, teacher))
    student.double()  # also what has joined it
    batch = Batch(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 5, (2, 32, 32)))
    batch.labels[batch.labels < 3] = 0
    view = method.view(batch, student(batch.images), teacher(batch.images), SECOND)
    found = {name: float(value.detach()) for name, value in method.losses(view).items()}
    assert view.teacher is not None
    ours, theirs = rows(view.student_logits), rows(view.teacher_logits)
    labels = batch.labels.flatten().tolist()
    kept = 5 * 2 * reference.sigmoid_distillation([z[1:3] for z in ours], [z[1:] for z in theirs])
    assert found["segmentation"] == pytest.approx(reference.binary_cross_entropy(ours, labels, (3, 4)))
    assert found["distillation"] == pytest.approx(kept)
    for name, side in (("positive", 0), ("negative", 1)):
        parts = [
            [reference.decomposed_logits(f, weight)[side] for f in rows(outputs.embedding)]
            for outputs, weight in (
                (network, head.get_parameter("weight").flatten(1).tolist())
                for network, head in (
                    (view.student, student.trained_head.heads[0]),
                    (view.teacher, teacher.trained_head.heads[0]),
                )
            )
        ]
        assert found[name] == pytest.approx(5 * 2 * reference.sigmoid_distillation(*parts)), name
    weight, bias = (student.get_parameter(f"auxiliary.{name}").flatten().tolist() for name in ("weight", "bias"))
    said = [sum(w * x for w, x in zip(weight, f, strict=True)) + bias[0] for f in rows(view.student.embedding)]
    assert found["auxiliary"] == pytest.approx(sum(math.log(1 + math.exp(z)) for z in said) / len(said))
    assert ("contrast" in found) == ("ucd" in text)


def test_new_classes_begin_as_the_auxiliary_classifier_which_moves_no_feature() -> None:
    part, student = AuxiliaryInitialisation(), make_student()
    part.begin(context(FIRST, student, None))
    student.double()  # also what has joined it
    batch = Batch(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8), torch.zeros(2, 32, 32, dtype=torch.int64))
    method = methods.parse("ft")
    part.losses(method.view(batch, student(batch.images), None, FIRST))["auxiliary"].backward()
    learning = {name for name, parameter in student.named_parameters() if parameter.grad is not None}
    assert learning == {"auxiliary.weight", "auxiliary.bias"}
    part.end(context(FIRST, student, None))
    assert not hasattr(student, "auxiliary"), "it must not be saved as part of the model"
    teacher = copy.deepcopy(student)
    student.trained_head.grow(2)
    old = copy.deepcopy(student.trained_head.heads[0].state_dict())
    part.begin(context(SECOND, student, teacher))
    newest = student.trained_head.heads[-1]
    for name in ("weight", "bias"):
        for channel in newest.get_parameter(name):
            torch.testing.assert_close(channel.double(), part.memory[name][0])
    assert all(torch.equal(value, old[name]) for name, value in student.trained_head.heads[0].state_dict().items())


def test_its_step_0_is_its_own_and_an_initialisation_is_a_slot() -> None:
    assert methods.parse("dkd").first_step not in ("", methods.parse("ft").first_step)
    with pytest.raises(InputError, match="both bring a segmentation loss"):
        methods.parse("dkd+mib")
    rivals = methods.ft() + methods.MethodSum("one", (AuxiliaryInitialisation(),))
    other = methods.mib().parts[2]
    assert isinstance(other, methods.Initialisation)
    with pytest.raises(InputError, match="both bring an initialisation"):
        (rivals + methods.MethodSum("two", (other,))).resolve()
