"""The closed-form head as a method: its settings, its steps, and its sums over several processes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from command_line import run
from incseg import methods
from incseg.batch import Batch
from incseg.curriculum import Library
from incseg.errors import InputError
from incseg.methods import ClosedForm, Context
from incseg.methods.ridge import _sum_over_processes
from incseg.models import Architecture, Segmenter
from incseg.models.closed_form import ClosedFormHead, Statistics
from incseg.models.gather import Fit, gather
from incseg.protocol import Step
from processes import PROCESSES, spawn
from samples import context

NETWORK = Architecture(encoder="test_resnet", decoder="deeplabv3", decoder_options={"decoder_channels": 8})
FIRST, SECOND = Step(0, old=(), new=(1, 2), future=(3,)), Step(1, old=(1, 2), new=(3,))
WORLD = 2


def student() -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(NETWORK, [3]).double().eval()


def images(seed: int, labels: tuple[int, ...], number: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (number, 3, 64, 64), dtype=torch.uint8, generator=generator)
    coarse = torch.tensor(labels)[torch.randint(0, len(labels), (number, 4, 4), generator=generator)]
    return Batch(pixels, coarse.repeat_interleave(16, 1).repeat_interleave(16, 2))


def of(step: Step, network: Segmenter, batch: Batch, said: list[str]) -> Context:
    base = context(step, network, None)
    counts = torch.bincount(batch.labels.flatten(), minlength=step.num_classes).double()
    return Context(
        base.step, base.student, None, base.batches, base.library,
        whole_images=lambda: [batch], images_as_scored=lambda: [batch], pixel_counts=lambda: counts, say=said.append,
    )  # fmt: skip


def test_a_run_of_two_steps_puts_the_solved_head_on_the_network() -> None:
    network, part, said = student(), ClosedForm(width=40), list[str]()
    frozen = {name: value.clone() for name, value in network.encoder.state_dict().items()}
    first, second = images(0, (0, 1, 2)), images(1, (0, 3))
    part.begin(of(FIRST, network, first, said))
    part.end(of(FIRST, network, first, said))
    assert isinstance(network.classifier, ClosedFormHead)
    assert network.classifier.head_sizes == [3]
    layout = network.classifier.layout
    statistics = Statistics.empty(layout).with_classes(torch.bincount(first.labels.flatten()).double() / 256)
    statistics = gather(network, statistics, [first], Fit())
    part.end(of(SECOND, network, second, said))
    assert network.classifier.head_sizes == [3, 1]
    cells = torch.bincount(second.labels.flatten()).double()[3:] / 256  # only new classes are counted: n_c stays fixed
    statistics = gather(network, statistics.with_classes(cells), [second], Fit())
    torch.testing.assert_close(network.classifier.weight, statistics.solve(1.0).float())
    assert all(torch.equal(value, frozen[name]) for name, value in network.encoder.state_dict().items())
    assert said[-1].startswith("statistics of 3 classes for later extensions: ")
    assert statistics.num_classes == 4


def test_crops_of_training_take_the_place_of_the_images() -> None:
    network, crops = student(), [images(0, (0, 1, 2)), images(1, (0, 1, 2))]
    given = replace(of(FIRST, network, images(2, (0, 1, 2)), []), batches=lambda passes: crops * passes)
    cells = given.pixel_counts() / 256
    ClosedForm(width=40, fit=Fit(crops=2)).end(given)
    assert isinstance(network.classifier, ClosedFormHead)
    start = Statistics.empty(network.classifier.layout).with_classes(cells)
    expected = gather(network, start, crops * 2, Fit()).solve(1.0).float()
    torch.testing.assert_close(network.classifier.weight, expected)


@pytest.mark.parametrize("carried", [False, True])
def test_images_are_seen_as_they_are_scored_by_a_head_that_is_solved_now(carried: bool) -> None:
    as_they_are, as_scored = images(0, (0, 1, 2)), images(1, (0, 1, 2))
    given, part = of(replace(FIRST, future=()), student(), as_they_are, []), ClosedForm(width=40, carried=carried)
    part.end(replace(given, images_as_scored=lambda: [as_scored]))
    start = Statistics.from_state(part.memory).nothing()
    expected = gather(student(), start, [as_they_are if carried else as_scored], Fit())
    torch.testing.assert_close(part.memory["cross"], expected.cross)


@pytest.mark.parametrize(("crops", "as_they_are", "times"), [(2, True, 1), (2, False, 0), (0, True, 0)])
def test_a_head_that_is_fitted_at_another_scale_than_is_scored_is_told_once(
    crops: int, as_they_are: bool, times: int
) -> None:
    said, part, network = list[str](), ClosedForm(width=40, fit=Fit(crops=crops)), student()
    for step, batch in ((FIRST, images(0, (0, 1, 2))), (SECOND, images(1, (0, 3)))):
        given = of(step, network, batch, said)
        part.end(replace(given, batches=lambda _: [batch], scored_as_they_are=as_they_are))  # noqa: B023 - called at once
    assert " ".join(said).count("fitted to training crops, and images are scored as they are") == times


def test_with_complete_labels_the_cut_into_steps_does_not_matter() -> None:
    """The same images in one step or in two give one head, if their labels name the old classes too."""
    heads = []
    together = images(0, (0, 1, 2), 4)
    one = Batch(together.images[:2], together.labels[:2])
    rest = Batch(together.images[2:], together.labels[2:])
    for parts in ([together], [one, rest]):
        network, part = student(), ClosedForm(width=40, fit=Fit(balance=0))
        for index, batch in enumerate(parts):
            old = (1, 2) if index else ()
            step = Step(index, old=old, new=() if index else (1, 2), labelled_old=old, complete=True)
            part.end(of(step, network, batch, []))
        assert isinstance(network.classifier, ClosedFormHead)
        assert network.classifier.head_sizes == [3]
        heads.append(network.classifier.weight)
    torch.testing.assert_close(*heads)


def test_a_class_that_no_cell_shows_is_named() -> None:
    said, batch = list[str](), images(0, (0, 1))
    batch.labels[:, 0, 0] = 2  # in a corner of a cell, never at its centre
    given = replace(
        of(FIRST, student(), batch, said), library=cast(Library, SimpleNamespace(classes=("", "cat", "wire")))
    )
    ClosedForm(width=40).end(given)
    assert said[0].startswith(
        "not learnt, because no cell of 16 pixels has its centre on it: wire; --analytic.soft true"
    )
    said.clear()
    ClosedForm(width=40, fit=Fit(soft=True)).end(replace(given, student=student()))
    assert not any("not learnt" in line for line in said)


def test_statistics_of_features_that_training_moves_are_dropped() -> None:
    part = ClosedForm(width=40, carried=True)
    part.memory = {"gram": torch.zeros(1)}
    part.begin(of(FIRST, student(), images(0, (0, 1)), []))
    assert part.memory == {}


def test_a_model_carries_statistics_only_of_completely_labelled_images() -> None:
    network, part = student(), ClosedForm(width=40, carried=True)
    part.end(of(FIRST, network, images(0, (0, 1, 2)), []))
    assert part.memory == {}, "classes of later steps lie in its background"
    part.end(of(Step(0, old=(), new=(1, 2)), network, images(0, (0, 1, 2)), []))
    assert Statistics.from_state(part.memory).num_classes == 3
    assert not isinstance(network.classifier, ClosedFormHead)


def shares(rank: int) -> list[Batch]:
    whole = images(2, (0, 1, 2), number=5)
    return [Batch(whole.images[rank::WORLD], whole.labels[rank::WORLD])]


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    try:
        torch.save(gathered(shares(rank)).state(), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def gathered(batches: list[Batch]) -> Statistics:
    """Of a first step, and then of a second that asks the head of the first."""
    network, part = student(), ClosedForm(width=40)
    statistics = Statistics.empty(part._layout(network, 3)).with_classes(torch.tensor([30.0, 20.0, 10.0]))
    for _ in range(2):
        statistics = gather(network, statistics, batches, Fit(certainty=1.0), _sum_over_processes)
    return statistics


@PROCESSES
def test_two_processes_gather_what_one_gathers(tmp_path: Path) -> None:
    spawn(worker, tmp_path, WORLD)
    alone = gathered([*shares(0), *shares(1)]).state()
    found: list[dict[str, Tensor]] = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    for name in ("gram", "cross", "cells", "reference"):
        assert torch.equal(found[0][name], found[1][name])
        torch.testing.assert_close(found[0][name], alone[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("width", 0, "greater than or equal to 1"),
        ("width", 10**7, "less than or equal to 16384"),
        ("ridge", 0.0, "greater than 0"),
        ("stride", 12, "8, 16 or 32"),
        ("balance", -1.0, "greater than or equal to 0"),
        ("context", -1, "greater than or equal to 0"),
        ("crops", 101, "less than or equal to 100"),
    ],
)
def test_absurd_settings_are_refused_by_name(setting: str, value: float, words: str) -> None:
    with pytest.raises(InputError, match=rf"analytic.{setting}.*{words}"):
        methods.parse("analytic", {"analytic": {setting: value}})


def test_stages_that_the_encoder_does_not_have_are_refused_before_training(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run("train", "folder/2-2/overlapped", "--data-root", tiny_folder, "--method", "analytic",
               "--analytic.stages", "9", "--model.encoder", "test_resnet", "--model.weights", "none",
               "--out", tmp_path / "run")  # fmt: skip
    assert code == 2
    assert "a head can see 0 to 5 stages of this encoder, not 9" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
