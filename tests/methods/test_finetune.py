"""The losses on labels, by the head; and which methods a head works with."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import reference
from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.config import HeadKind
from incseg.errors import InputError
from incseg.methods import Segmentation
from incseg.methods.finetune import WeightedBinaryCrossEntropy
from incseg.protocol import Step, steps

DOCS = Path(__file__).parents[2] / "docs"
FIRST, SECOND = steps("2-2", 4)
SIZE = 4


def outputs(classes: int, seed: int) -> Outputs:
    """What a sigmoid head gives: background scores 0."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, classes, SIZE, SIZE, dtype=torch.float64, generator=generator)
    logits[:, 0] = 0
    return Outputs(logits, torch.randn(2, 8, SIZE, SIZE, dtype=torch.float64), [], head="sigmoid")


def view_of(step: Step, method: methods.Method, shown: tuple[int, ...]) -> View:
    generator = torch.Generator().manual_seed(3)
    labels = torch.tensor([0, *shown, 255])[torch.randint(0, len(shown) + 2, (2, SIZE, SIZE), generator=generator)]
    batch = Batch(torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8), labels)
    teacher = outputs(step.old_classes, seed=1) if step.index else None
    return method.view(batch, outputs(step.num_classes, seed=2), teacher, step)


@pytest.mark.parametrize(
    ("text", "step", "asked"),
    [
        ("ft", FIRST, (1, 2)),
        ("joint", FIRST, (1, 2)),
        ("ft", SECOND, (3, 4)),
        ("ft", replace(SECOND, labelled_old=(2,)), (2, 3, 4)),  # an extension: some of its images label an old class
        ("ft", replace(SECOND, labelled_old=(1, 2), complete=True), (1, 2, 3, 4)),
        ("ewc", SECOND, (3, 4)),
        ("joint", SECOND, (1, 2, 3, 4)),
        ("ucd", SECOND, (1, 2, 3, 4)),
        ("analytic", FIRST, (1, 2)),
    ],
)
def test_a_sigmoid_is_asked_about_the_classes_that_the_targets_tell(
    text: str, step: Step, asked: tuple[int, ...]
) -> None:
    method = methods.parse(text)
    view = view_of(step, method, asked if text == "joint" else (*step.labelled_old, *step.new))
    scores = view.student.logits.movedim(1, -1).flatten(0, 2).tolist()
    targets = view.labels.flatten().tolist()
    if text == "ucd":  # background is what the teacher says it is
        assert view.teacher is not None
        found = view.teacher.logits.movedim(1, -1).flatten(0, 2).tolist()
        said = [reference.at_most_one_yes(pixel[1:]) for pixel in found]
        targets = [reference.extended_pixel(y, q, 5)[0] for y, q in zip(targets, said, strict=True)]
        assert set(targets) > {1, 2}
    hidden = () if step.complete else step.labelled_old
    expected = reference.binary_cross_entropy(scores, targets, asked, hidden_in_background=hidden)
    assert float(method.losses(view)["segmentation"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("text", ["ft", "dkd", "star"])
@pytest.mark.parametrize("complete", [True, False])
def test_background_unlearns_no_old_class_unless_every_image_labels_it(text: str, complete: bool) -> None:
    step = replace(SECOND, labelled_old=(1, 2), complete=complete)
    found = methods.parse(text)
    (part,) = (part for part in found.parts if isinstance(part, Segmentation))
    view = view_of(step, found, step.seen)
    view.student.logits.requires_grad_()
    loss = part.on_images(view) if isinstance(part, WeightedBinaryCrossEntropy) else part.losses(view)["segmentation"]
    (gradient,) = torch.autograd.grad(loss, view.student.logits)
    on_background = gradient.movedim(1, -1)[view.labels == 0]
    assert (on_background[:, [1, 2]] != 0).all() if complete else not on_background[:, [1, 2]].any()
    assert (on_background[:, [3, 4]] > 0).all(), "it is none of the new classes"
    on_foreground = gradient.movedim(1, -1)[(view.labels > 0) & (view.labels < 255)]
    assert (on_foreground[:, 1:] != 0).all(), "what is one class is no other"


def working_with(head: HeadKind) -> list[str]:
    found = []
    for name in methods.method_names():
        try:
            methods.require_head(methods.parse(name), head)
        except InputError as error:
            needed = {"dkd": "sigmoid", "star": "sigmoid", "ssul": "branched"}.get(name, "softmax")
            sentence = str(error)
            assert sentence.startswith(f"'{name}' needs a {needed} head, and this network has a {head} head")
        else:
            found.append(name)
    return found


def test_methods_that_need_another_head_are_refused_with_the_names_of_those_that_do_not() -> None:
    not_softmax = set(methods.method_names()) - set(working_with("softmax"))
    working = working_with("sigmoid")
    assert not_softmax == {"dkd", "star", "ssul"}
    assert {"dkd", "star"} < set(working)
    assert {"ft", "joint", "analytic", "ucd", "dft", "ewf"} <= set(working)
    assert not {"mib", "plop", "sdr", "lwf", "lwf-mc", "ilt", "emseg", "recall"} & set(working)
    with pytest.raises(InputError, match=rf"'mib' needs .* use {', '.join(working)}, or sums of these\."):
        methods.require_head(methods.parse("ucd+mib"), "sigmoid")
    for head, names in (("softmax", sorted(not_softmax)), ("sigmoid", working)):
        row = next(line for line in (DOCS / "methods.md").read_text().splitlines() if line.startswith(f"| `{head}`"))
        assert re.findall(r"`([\w-]+)`", row.split("|")[-2]) == names
