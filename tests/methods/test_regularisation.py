"""EWC, PI and RW against hand-written recurrences, on the gradients of a real student."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

import reference
from incseg import methods
from incseg.batch import Batch, Outputs, View
from incseg.config import RunConfig, load_recipe
from incseg.engine.assembly import train
from incseg.methods.method import _unless
from incseg.methods.regularisation import ElasticWeights, ImportancePenalty, PathIntegral, RiemannianWalk
from incseg.models import Architecture, Segmenter
from incseg.protocol import steps
from samples import context

FIRST, SECOND = steps("2-2", 4)
VIEW = View(Batch(torch.zeros(1), torch.zeros(1)), Outputs(torch.zeros(1), torch.zeros(1), []), None, FIRST)
NAME = "classifier.heads.0.weight"


def student_of(heads: list[int]) -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), heads)


def walk(part: ImportancePenalty, student: Segmenter, iterations: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Random gradients and moves; returns gradients, and parameters before each move and at the end."""
    generator = torch.Generator().manual_seed(1)
    weight = student.get_parameter(NAME)
    gradients, places = [], [weight.detach().clone()]
    for _ in range(iterations):
        for parameter in student.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        assert weight.grad is not None
        gradients.append(weight.grad.clone())
        part.observe(VIEW, student)
        with torch.no_grad():
            for parameter in student.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
        places.append(weight.detach().clone())
    return gradients, places


def min_max(x: torch.Tensor) -> torch.Tensor:
    return (x - x.min()) / (x.max() - x.min() + 1e-8)


def ewc_importance(gradients: list[torch.Tensor], _: list[torch.Tensor]) -> torch.Tensor:
    fisher = torch.ones_like(gradients[0])
    for g in gradients:
        fisher = 0.9 * g * g + 0.1 * fisher
    return min_max(fisher)


def pi_importance(gradients: list[torch.Tensor], places: list[torch.Tensor]) -> torch.Tensor:
    omega = torch.zeros_like(places[0])
    last = places[0]
    for g, place in zip(gradients, places, strict=False):
        omega += g * (last - place)
        last = place
    return min_max(torch.relu(omega / ((places[-1] - places[0]) ** 2 + 1e-20)))


def rw_importance(gradients: list[torch.Tensor], places: list[torch.Tensor]) -> torch.Tensor:
    fisher, path, last = torch.ones_like(places[0]), torch.zeros_like(places[0]), places[0]
    for i, (g, place) in enumerate(zip(gradients, places, strict=False)):
        if i % 10 == 0:
            moved = last - place
            path += g * moved / (0.5 * fisher * moved**2 + 1e-8)
            last = place
        fisher = 0.9 * g * g + 0.1 * fisher
    return min_max(fisher) + min_max(torch.relu(path))


@pytest.mark.parametrize(
    ("part", "definition"),
    [
        (ElasticWeights(weight=3.0), ewc_importance),
        (PathIntegral(weight=3.0), pi_importance),
        (RiemannianWalk(weight=3.0), rw_importance),
    ],
)
def test_importance_and_penalty_follow_their_definition(
    part: ImportancePenalty, definition: Callable[[list[torch.Tensor], list[torch.Tensor]], torch.Tensor]
) -> None:
    student = student_of([3])
    part.begin(context(FIRST, student, None, batches=list))
    assert part.penalty(student).item() == 0, "nothing to hold at step 0"
    gradients, places = walk(part, student, 25)
    part.end(context(FIRST, student, None, batches=list))

    teacher = student_of([3])
    teacher.load_state_dict(student.state_dict())
    student.trained_head.grow(2)
    part.begin(context(SECOND, student, teacher, batches=list))
    torch.testing.assert_close(part.memory[f"importance/{NAME}"], definition(gradients, places))
    assert part.penalty(student).item() == 0, "nothing has moved yet"
    with torch.no_grad():
        student.get_parameter(NAME).add_(0.5)
        student.get_parameter("classifier.heads.1.weight").add_(0.5)  # the new head is free
    expected = 3.0 * 0.25 * definition(gradients, places).sum()
    torch.testing.assert_close(part.penalty(student), expected)
    torch.testing.assert_close(part.add_gradients(student), expected)


def test_gradients_for_all_parameters_at_once_are_those_of_autograd_to_the_bit() -> None:
    part, student, teacher = ElasticWeights(weight=300.0), student_of([3]), student_of([3])
    part.begin(context(FIRST, student, None, batches=list))
    walk(part, student, 3)
    part.begin(context(SECOND, student, teacher, batches=list))
    generator = torch.Generator().manual_seed(2)
    start = {name: torch.randn(p.shape, generator=generator) for name, p in student.own_parameters()}

    def gradients(add: Callable[[Segmenter], torch.Tensor]) -> list[torch.Tensor | None]:
        for name, parameter in student.own_parameters():
            parameter.grad = torch.empty_like(parameter).copy_(start[name])
        add(student)
        return [parameter.grad for _, parameter in student.own_parameters()]

    def by_autograd(student: Segmenter) -> torch.Tensor:
        found = part.penalty(student)
        found.backward()
        return found

    for found, expected in zip(gradients(part.add_gradients), gradients(by_autograd), strict=True):
        assert found is not None
        assert expected is not None
        assert torch.equal(found, expected)


def test_the_penalty_that_is_logged_is_the_same_however_importance_lies_in_memory() -> None:
    """It is saved and loaded in another layout than it was found in; sums depend on the order of their terms."""
    found = []
    for layout in (torch.channels_last, torch.contiguous_format):
        student, part = student_of([3]), ElasticWeights()
        walk(part, student, iterations=3)
        part.begin(replace(context(SECOND, student, copy.deepcopy(student))))
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        part.memory = {
            name: value.contiguous(memory_format=layout) if value.dim() == 4 else value
            for name, value in part.memory.items()
        }
        found.append(part.add_gradients(student))
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["ewc", "pi", "rw"])
@pytest.mark.parametrize("iterations", [0, 1, 10])  # rw looks at every tenth
def test_nothing_is_remembered_of_gradients_that_are_not_finite(name: str, iterations: int) -> None:
    student, method = student_of([3]), methods.parse(name)
    part = method.parts[1]
    assert isinstance(part, ImportancePenalty)
    part.begin(context(FIRST, student, None, batches=list))
    walk(part, student, iterations)
    kept = {key: value.clone() for key, value in part.memory.items()}
    for parameter in student.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    method.observe(VIEW, student, wrong=torch.ones(()))
    assert part.memory.keys() == kept.keys()
    for key, value in part.memory.items():
        assert torch.equal(value, kept[key]), key
    walk(part, student, 2)
    assert any(not torch.equal(value, kept.get(key, torch.empty(0))) for key, value in part.memory.items())


def test_a_counter_on_the_host_does_not_make_it_wait_for_the_device() -> None:
    before = {"iteration": torch.tensor(3), "fisher": torch.ones(2, device="meta")}
    after = {"iteration": torch.tensor(4), "fisher": torch.zeros(2, device="meta")}
    found = _unless(torch.ones((), device="meta"), before, after)  # whose number nobody can read
    assert found["iteration"] == 4
    assert found["fisher"].is_meta


class Toy(nn.Module):
    """One tensor per head in float64, and all that a penalty asks of a student."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ParameterDict()
        self.mean = torch.zeros(())

    def own_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in self.named_parameters())


@pytest.mark.parametrize("name", ["ewc", "pi", "rw"])
def test_three_steps_end_where_mibs_recurrence_ends(name: str) -> None:
    generator = torch.Generator().manual_seed(5)

    def draw(names: str, scale: float = 1.0) -> reference.Tensors:
        numbers = {n: scale * torch.randn(4, dtype=torch.float64, generator=generator) for n in names}
        return {n: values.tolist() for n, values in numbers.items()}

    # Small gradients, as after training: the 1e-8 beside their squares then counts.
    plan = [(draw(new, 1e-3), [draw("abc"[: i + 1], 1e-3) for _ in range(23)]) for i, new in enumerate("abc")]
    expected = reference.regularised_descent(name, plan, weight=3.0, rate=0.05)

    part = methods.parse(name, {name: {"weight": 3.0}}).parts[1]
    assert isinstance(part, ImportancePenalty)
    student = Toy()
    for step, (new, targets) in zip(steps("1-1", 3), plan, strict=True):
        teacher = copy.deepcopy(student) if step.index else None
        student.heads.update({n: nn.Parameter(torch.tensor(v, dtype=torch.float64)) for n, v in new.items()})
        given = context(step, cast(Segmenter, student), cast(Segmenter | None, teacher))
        part.begin(given)
        for target in targets:
            for n, parameter in student.heads.items():
                parameter.grad = parameter.detach() - torch.tensor(target[n], dtype=torch.float64)
            part.observe(VIEW, cast(Segmenter, student))
            methods.Method(name, (part,)).add_penalty_gradients(cast(Segmenter, student))
            with torch.no_grad():
                for parameter in student.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(0.05 * parameter.grad)
        part.end(given)
    for n, values in expected.items():
        assert student.heads[n].tolist() == pytest.approx(values, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("name", ["ewc", "pi", "rw"])
def test_they_need_their_own_first_step(name: str) -> None:
    assert methods.parse(name).first_step != methods.parse("ft").first_step


@pytest.mark.parametrize(
    ("name", "recipe"),
    [*((name, "shapes/4-2/overlapped") for name in ("ewc", "pi", "rw")), ("ewc", "ade20k/100-50/overlapped")],
)
def test_they_hold_at_the_learning_rates_of_the_recipes(
    name: str, recipe: str, quick_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    rates = load_recipe(recipe).optim
    optim = {
        "epochs": 10,
        "batch_size": 4,
        "learning_rate": rates.learning_rate,
        "incremental_learning_rate": rates.incremental_learning_rate,
    }
    train(quick_config(name, optim=optim), tmp_path)  # refuses a loss that is not finite
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    penalty = type(methods.parse(name).parts[1]).__name__
    values = [line[penalty] for line in lines if line["step"] == "step 1"]
    assert len(values) >= 30
    assert 0 < max(values) < 10, "parameters swing ever further around where they should stay"


def test_importance_is_cut_only_where_the_optimizer_could_not_hold_it() -> None:
    part, student = ElasticWeights(weight=500.0), student_of([3])
    walk(part, student, 5)
    for curvature, largest in ((1.357 / 0.001, 1.0), (1.357 / 0.03, 0.9 * 1.357 / 0.03 / 1000), (math.inf, 1.0)):
        part.begin(replace(context(SECOND, student, student, batches=list), stable_curvature=curvature))
        expected = part.importance(NAME, student.get_parameter(NAME)).clamp(max=largest)
        torch.testing.assert_close(part.memory[f"importance/{NAME}"], expected)
        assert float(expected.max()) == pytest.approx(largest)
