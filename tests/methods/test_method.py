"""Methods as sums of parts: who fills a slot, what is refused, what a part sees."""

import math
import pkgutil
import re
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.errors import InputError
from incseg.loading.replay import Replay
from incseg.methods import Context, Distillation, Method, MethodSum, Part, Penalty, Segmentation
from incseg.methods.contrast import ContrastiveDistillation
from incseg.models import Architecture, Segmenter
from incseg.protocol import Step, steps


def names(method: Method) -> list[str]:
    return [type(part).__name__ for part in method.parts]


def view_of(step: Step, *, with_teacher: bool = True) -> tuple[Batch, Outputs, Outputs | None]:
    torch.manual_seed(0)
    labels = torch.randint(0, 2, (2, 32, 32)) * step.new[0]
    student = Outputs(torch.randn(2, step.num_classes, 2, 2, requires_grad=True), torch.randn(2, 8, 2, 2), [])
    teacher = Outputs(torch.randn(2, step.old_classes, 2, 2), torch.randn(2, 8, 2, 2), []) if with_teacher else None
    return Batch(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), labels), student, teacher


def test_a_sum_reads_like_the_objective() -> None:
    assert names((methods.mib() + methods.ucd()).resolve()) == names(methods.parse("mib+ucd"))
    assert names(methods.parse("mib+ucd")) == [
        "UnbiasedCrossEntropy", "UnbiasedDistillation", "BalancedInitialisation", "ContrastiveDistillation",
    ]  # fmt: skip


def test_ucd_alone_trains_on_the_extended_map_and_yields_to_any_other_loss() -> None:
    assert names(methods.parse("ucd")) == ["ExtendedMapCrossEntropy", "ContrastiveDistillation"]
    assert names(methods.parse("ft+ucd")) == ["CrossEntropy", "ContrastiveDistillation"]


@pytest.mark.parametrize("text", ["ft+mib", "mib+ft", "ft+mib+ucd", "ucd+mib+ft"])
def test_the_most_specialised_loss_wins_in_any_order(text: str) -> None:
    method = methods.parse(text)
    assert [n for n in names(method) if "CrossEntropy" in n] == ["UnbiasedCrossEntropy"]


@dataclass
class Rival(Distillation):
    needs_teacher: ClassVar[bool] = True

    def losses(self, view: View) -> dict[str, Tensor]:
        return {"distillation": view.student.logits.sum()}


def test_two_rivals_for_a_slot_are_refused_with_both_names() -> None:
    rival = Rival()
    rival.origin = "rival"
    with pytest.raises(InputError, match=r"'mib' and 'rival' .*UnbiasedDistillation and Rival") as caught:
        (methods.mib() + MethodSum("rival", (rival,))).resolve()
    assert "\n" not in str(caught.value)


@dataclass
class OneMemory(Part):
    def replay(self, context: Context) -> Replay | None:  # noqa: ARG002
        return None


@dataclass
class OtherMemory(OneMemory):
    """A rival in nothing but its images."""


def test_two_memories_are_refused() -> None:
    one, other = OneMemory(), OtherMemory()
    one.origin, other.origin = "kept", "found"
    assert (methods.ft() + MethodSum("kept", (one,))).resolve().replays
    with pytest.raises(InputError, match=r"'kept' and 'found' cannot be summed: both replay images"):
        (methods.ft() + MethodSum("kept", (one,)) + MethodSum("found", (other,))).resolve()


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("sdr+ucd", "UnbiasedCrossEntropy"),  # neither specialises the other: the first named
        ("ucd+sdr", "ExtendedMapCrossEntropy"),
        ("ewf+sdr", "UnbiasedCrossEntropy"),  # the more specialised, although named last
        ("ewf+ucd+sdr", "ExtendedMapCrossEntropy"),
        ("sdr+ucd+mib", "UnbiasedCrossEntropy"),
    ],
)
def test_of_several_defaults_the_more_specialised_or_the_first_named_is_used(text: str, loss: str) -> None:
    found = [type(part).__name__ for part in methods.parse(text).parts if isinstance(part, Segmentation)]
    assert found == [loss]


def test_only_a_resolved_method_can_be_trained() -> None:
    total = methods.mib() + methods.ucd()
    assert not isinstance(total, Method)
    assert not hasattr(total, "losses")
    assert not hasattr(total.resolve(), "resolve")


def test_every_built_in_method_is_an_explicit_attribute_and_no_module() -> None:
    for entry in methods.describe_methods():
        if not entry.build.__module__.startswith("incseg."):
            continue  # installed by another package
        name = entry.build.__name__
        found = getattr(methods, name)
        assert found is entry.build, name
        assert name in methods.__all__
    for module in pkgutil.iter_modules(methods.__path__):
        assert module.name not in methods.__all__
        assert isinstance(getattr(methods, module.name), ModuleType), f"{module.name} is hidden by another object"


def test_resolving_is_associative_because_it_happens_once() -> None:
    a, b, c = methods.ft(), methods.ucd(), methods.mib()
    assert names(((a + b) + c).resolve()) == names((a + (b + c)).resolve())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mbi", "Did you mean 'mib'"),
        ("mib+", "'' in 'mib+' is not a method"),
        ("joint+ucd", "'joint' stands alone: it cannot be summed with 'ucd'"),
        ("ucd+mib+joint", "'joint' stands alone"),
        ("mib+mib", "named twice"),
        ("ucd+pixel", "'ucd' and 'pixel' cannot be summed: both bring a contrast loss"),
        ("pixel+segment", "'pixel' and 'segment' cannot be summed"),
        ("ucd+cd", "'ucd' and 'cd' cannot be summed"),
    ],
)
def test_sums_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        methods.parse(text)


def test_a_method_without_a_segmentation_loss_is_refused() -> None:
    with pytest.raises(InputError, match="no segmentation loss"):
        MethodSum("odd", (Part(),)).resolve()


def test_settings_reach_the_parts_and_are_checked() -> None:
    contrast = methods.parse("ucd", {"ucd": {"temperature": "0.5", "uncertainty": False}}).parts[1]
    assert isinstance(contrast, ContrastiveDistillation)
    assert (contrast.temperature, contrast.uncertainty) == (0.5, False)
    with pytest.raises(InputError, match=r"no setting 'temprature' .* Did you mean 'temperature'"):
        methods.parse("ucd", {"ucd": {"temprature": 1}})
    with pytest.raises(InputError, match=r"ucd\.denominator cannot be 'all'"):
        methods.parse("ucd", {"ucd": {"denominator": "all"}})
    with pytest.raises(InputError, match=r"ucd\.temperature cannot be -1"):
        methods.parse("ucd", {"ucd": {"temperature": -1}})
    with pytest.raises(InputError, match=r"ucd\.stride cannot be 0"):
        methods.parse("ucd", {"ucd": {"stride": 0}})
    with pytest.raises(InputError, match="not part of the method"):
        methods.parse("ft", {"ucd": {"temperature": 1}})


@pytest.mark.parametrize(
    "setting", ["emseg.balance", "emseg.confidence", "ewc.weight", "ucd.temperature", "mib.kd_weight"]
)
@pytest.mark.parametrize("value", [math.inf, math.nan, "inf"])
def test_a_setting_is_a_finite_number(setting: str, value: object) -> None:
    name, key = setting.split(".")
    with pytest.raises(InputError, match=rf"the setting {name}\.{key} cannot be .*: Input should be"):
        methods.parse(name, {name: {key: value}})


def test_two_methods_do_not_share_memory() -> None:
    first, second = methods.parse("mib"), methods.parse("mib")
    first.parts[0].memory["x"] = torch.ones(1)
    assert not second.parts[0].memory


def test_memory_travels_by_the_name_of_its_part() -> None:
    method = methods.parse("mib+ucd")
    method.parts[0].memory["seen"] = torch.arange(3)
    method.parts[3].memory["seen"] = torch.arange(4)
    memory = method.memory()
    assert set(memory) == {"UnbiasedCrossEntropy.seen", "ContrastiveDistillation.seen"}
    other = methods.parse("mib+ucd")
    other.load_memory(memory)
    assert torch.equal(other.parts[3].memory["seen"], torch.arange(4))


@pytest.mark.parametrize("text", ["ft", "mib", "ucd", "mib+ucd", "joint"])
def test_at_step_0_every_method_is_plain_cross_entropy(text: str) -> None:
    first = steps("2-2", 4)[0]
    batch, student, teacher = view_of(first, with_teacher=False)
    method = methods.parse(text)
    terms = method.losses(method.view(batch, student, teacher, first))
    plain = methods.parse("ft")
    expected = plain.losses(plain.view(batch, student, None, first))
    assert set(terms) == {"segmentation"}
    torch.testing.assert_close(terms["segmentation"], expected["segmentation"])


def test_each_term_is_weighted_and_named() -> None:
    second = steps("2-2", 4)[1]
    batch, student, teacher = view_of(second)
    light, heavy = (
        methods.parse("mib+ucd"),
        methods.parse("mib+ucd", {"mib": {"kd_weight": 20}, "ucd": {"weight": 0.05}}),
    )
    one, two = (m.losses(m.view(batch, student, teacher, second)) for m in (light, heavy))
    assert set(one) == {"segmentation", "distillation", "contrast"}
    torch.testing.assert_close(two["distillation"], 2 * one["distillation"])
    torch.testing.assert_close(two["contrast"], 5 * one["contrast"])


@dataclass
class Recorder(Segmentation):
    """Sees that relabelling reached it while the ground truth stayed."""

    def relabel(self, view: View) -> Tensor:
        return view.targets + 1

    def losses(self, view: View) -> dict[str, Tensor]:
        assert torch.equal(view.targets, view.labels + 1)
        return {"segmentation": view.student.logits.sum()}


def test_relabelling_makes_new_targets_and_leaves_the_ground_truth() -> None:
    second = steps("2-2", 4)[1]
    batch, student, teacher = view_of(second)
    before = batch.labels.clone()
    method = Method("recorder", (Recorder(),))
    method.losses(method.view(batch, student, teacher, second))
    assert torch.equal(batch.labels, before)


@dataclass
class Pull(Penalty):
    weight: float = 2.0

    def penalty(self, student: Segmenter) -> Tensor:
        return self.weight * sum((p.square().sum() for p in student.parameters()), torch.zeros(()))


def test_penalties_add_their_gradients_to_those_of_the_losses() -> None:
    student = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [2])
    for parameter in student.parameters():
        parameter.grad = torch.ones_like(parameter)
    terms = Method("pull", (Pull(),)).add_penalty_gradients(student)
    assert set(terms) == {"Pull"}
    for parameter in student.parameters():
        torch.testing.assert_close(parameter.grad, 1 + 4 * parameter.detach())


def test_every_registered_method_says_what_it_is() -> None:
    for entry in methods.describe_methods():
        assert entry.summary
        assert entry.paper
        entry.build().resolve()
    needs = {entry.name: entry.needs for entry in methods.describe_methods()}
    assert needs["ft"] == ()
    assert needs["ucd"] == ("teacher",)
    assert needs["joint"] == ("old data",)
    assert needs["ewc"] == ("memory",)
    assert needs["ewf"] == ()
    assert needs["recall"] == needs["emseg"] == ("teacher", "memory", "replay images")
    assert needs["sdr"] == ("teacher", "memory")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lwf", ["CrossEntropy", "OutputDistillation"]),
        ("lwf-mc", ["BinaryCrossEntropy", "SigmoidDistillation"]),
        ("ilt", ["CrossEntropy", "OutputDistillation", "EncoderDistillation"]),
        ("ilt+", ["CrossEntropy", "OutputDistillation", "EncoderDistillation", "DecoderDistillation"]),
        ("ilt++ucd", ["CrossEntropy", "OutputDistillation", "EncoderDistillation", "DecoderDistillation",
                      "ContrastiveDistillation"]),
        ("ewf", ["CrossEntropy", "WeightFusion"]),
        ("mib+ewf", ["UnbiasedCrossEntropy", "UnbiasedDistillation", "BalancedInitialisation", "WeightFusion"]),
    ],
)  # fmt: skip
def test_methods_are_the_sums_of_their_parts(text: str, parts: list[str]) -> None:
    assert [type(part).__name__ for part in methods.parse(text).parts] == parts


def test_sigmoids_change_step_0() -> None:
    assert methods.parse("lwf-mc").first_step == "sigmoid"
