"""STAR: what it counts, remembers and replays, its terms, and two processes against one on the joined batch."""

import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import reference
import reference_replay
from incseg import methods
from incseg.batch import Batch, View
from incseg.errors import InputError
from incseg.losses.remembered_features import FeatureModel
from incseg.methods import Context
from incseg.methods.feature_replay import FeatureReplay, OldFeatureDistillation, UncertaintyConstraint
from incseg.models import Architecture, Segmenter
from incseg.protocol import steps
from samples import context

FIRST, SECOND = steps("2-2", 4)
WORLD = 2


def network(kernel: int = 1) -> Segmenter:
    torch.manual_seed(0)
    options = {"decoder_channels": 8}
    architecture = Architecture(
        encoder="test_resnet", head="sigmoid", decoder_options=options, classifier_kernel=kernel
    )
    student = Segmenter(architecture, [3]).eval()
    first = student.trained_head.heads[0]
    with torch.no_grad():  # a head that sees both classes and background in any image
        first.get_parameter("weight").normal_(std=500)
        said = student(batch_of((1, 2), seed=0).images).logits[:, 1:]
        first.get_parameter("bias").sub_(said.mean(dim=(0, 2, 3)))
    return student


def batch_of(classes: tuple[int, ...], seed: int, images: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.tensor([0, *classes, 255])[torch.randint(0, len(classes) + 2, (images, 4, 4), generator=generator)]
    colours = torch.randint(0, 256, (images, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return Batch(*(values.repeat_interleave(16, -1).repeat_interleave(16, -2) for values in (colours, coarse)))


def share(batch: Batch) -> Batch:
    """Of this process."""
    if not dist.is_initialized():
        return batch
    own = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    return Batch(batch.images[own], batch.labels[own])


def batches(classes: tuple[int, ...]) -> Iterator[Batch]:
    return (share(batch_of(classes, seed)) for seed in (1, 2))


def grown(part: FeatureReplay) -> tuple[Context, Context]:
    """Both steps, the first one remembered, and a student that has moved since."""
    student = network()
    first = replace(context(FIRST, student, None), batches=lambda _: batches(FIRST.new), seed=3)
    part.begin(first)
    part.gather(first)
    teacher = copy.deepcopy(student).requires_grad_(False)
    torch.manual_seed(1)
    student.trained_head.grow(2)
    with torch.no_grad():
        for parameter in student.decoder.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return first, replace(context(SECOND, student, teacher), batches=lambda _: batches(SECOND.new), seed=4)


def cells(embedding: Tensor, labels: Tensor) -> tuple[list[list[float]], list[int]]:
    side = labels.shape[-1] // embedding.shape[-1]
    rows: list[list[float]] = embedding.detach().movedim(1, -1).flatten(0, 2).tolist()
    return rows, labels[:, side // 2 :: side, side // 2 :: side].flatten().tolist()


def seen(model: Segmenter, classes: tuple[int, ...]) -> tuple[list[list[float]], list[int], list[int]]:
    """Features, labels and predictions of the cells of an epoch."""
    rows, labels, found = [], [], []
    for batch in batches(classes):
        outputs = model(batch.images)
        more = cells(outputs.embedding, batch.labels)
        rows += more[0]
        labels += more[1]
        found += outputs.logits.argmax(dim=1).flatten().tolist()
    return rows, labels, found


def test_it_remembers_each_class_of_a_step_when_that_ends() -> None:
    part = FeatureReplay()
    _, second = grown(part)
    assert second.teacher is not None
    rows, labels, _ = seen(second.teacher, FIRST.new)
    before = {name: value.clone() for name, value in part.memory.items()}
    part.begin(second)
    part.gather(second)
    after, new_labels, _ = seen(second.student, SECOND.new)
    for c, features, truth in ((1, rows, labels), (2, rows, labels), (3, after, new_labels), (4, after, new_labels)):
        mine = [f for f, y in zip(features, truth, strict=True) if y == c]
        expected = reference_replay.class_model(mine)
        for name, value in zip(("direction", "noise", "norm_mean", "norm_std"), expected, strict=True):
            assert part.memory[name][c].tolist() == pytest.approx(value, rel=1e-3, abs=1e-6), (c, name)
        assert part.memory["pixels"][c] == len(mine)
    _, truth, found = seen(second.teacher, SECOND.new)
    again = sum(y == 0 and p == 0 for y, p in zip(truth, found, strict=True))
    assert part.memory["pixels"][0].item() == pytest.approx(labels.count(0) * (1 - 0.01 * 2) + 0.5 * again)
    assert all(torch.equal(part.memory[name][1:3], before[name][1:3]) for name in before)


@pytest.mark.parametrize("overlap", [True, False])
def test_it_replays_what_an_epoch_lacks(overlap: bool) -> None:
    part = FeatureReplay()
    _, second = grown(part)
    second = replace(second, images_overlap=overlap)
    assert second.teacher is not None
    part.memory["pixels"] = torch.tensor([300.0, 90.0, 700.0])
    part.begin(second)
    _, labels, found = seen(second.teacher, SECOND.new)
    counts = [sum(y == 0 and p == c for y, p in zip(labels, found, strict=True)) for c in range(3)]
    missing = [max(stored - overlap * counts[c], 0) / 2 for c, stored in ((1, 90), (2, 700))]
    assert part._missing.tolist() == pytest.approx([0, *missing])
    assert part._repeats == pytest.approx(max(294 / counts[0] - 0.5, 0) if overlap else 300 / counts[0])


@pytest.mark.parametrize("overlap", [True, False])
def test_over_several_steps_it_counts_as_the_authors_do(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found_in = [[40.0, 3.0, 90.0], [50.0, 2.0, 1.0, 8.0, 0.0]]
    expected = reference_replay.star_steps([300.0, 9.0, 70.0], found_in, [2, 1], overlap=overlap)
    part = FeatureReplay()
    part.memory = remembered([300.0, 9.0, 70.0])
    for step, found, (lacking, repeats) in zip(steps("2-2-1", 5)[1:], found_in, expected, strict=True):
        now = replace(context(step, network(), network()), images_overlap=overlap)
        counted = (torch.tensor(found, dtype=torch.float64), 4)
        monkeypatch.setattr("incseg.methods.feature_replay.predicted_counts", lambda *_, counted=counted: counted)
        part.begin(now)
        assert part._missing.tolist() == pytest.approx([0, *(number / 4 for number in lacking)])
        assert part._repeats == pytest.approx(repeats)
        model = FeatureModel(**remembered([10.0] * step.num_classes))
        monkeypatch.setattr("incseg.methods.feature_replay.gather_model", lambda _, model=model: model)
        part.gather(now)


def remembered(pixels: list[float]) -> dict[str, Tensor]:
    """Of so many cells of every class; what their features were plays no role."""
    ones = torch.ones(len(pixels), 8)
    return {"direction": ones, "noise": ones, "norm_mean": ones[:, 0], "norm_std": ones[:, 0],
            "pixels": torch.tensor(pixels)}  # fmt: skip


def test_nothing_is_remembered_of_a_step_that_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    method = methods.parse("star+analytic")
    part = next(part for part in method.parts if isinstance(part, FeatureReplay))
    solving = next(part for part in method.parts if part.solves)
    part.memory, ended = remembered([300.0, 9.0, 70.0]), []
    monkeypatch.setattr(type(solving), "end", lambda _, context: ended.append(context.step))
    method.solve(context(SECOND, network(), None))
    assert ended == [SECOND]
    assert part.memory["pixels"].tolist() == [300.0, 9.0, 70.0]


def viewed(method: methods.Method, second: Context, batch: Batch) -> View:
    assert second.teacher is not None
    with torch.no_grad():
        teacher = second.teacher(batch.images)
    return method.view(batch, second.student(batch.images), teacher, SECOND)


def test_its_terms_equal_their_definitions() -> None:
    method = methods.parse("star", {"star": {"uncertainty": 0.1}})
    replay = method.parts[0]
    assert isinstance(replay, FeatureReplay)
    _, second = grown(replay)
    method.begin(second)
    batch = batch_of(SECOND.new, seed=9)
    view = viewed(method, second, batch)
    torch.manual_seed(5)
    found = {name: value.item() for name, value in method.losses(view).items()}
    torch.manual_seed(5)
    made_up = replay._made_up(most=10**6)
    head = second.student.trained_head.heads[-1]
    logits = torch.nn.functional.conv2d(
        made_up[:, :, None, None], head.get_parameter("weight"), head.get_parameter("bias")
    )
    rows, labels = cells(view.student.embedding, batch.labels)
    assert view.teacher is not None
    predicted = view.teacher.logits.argmax(dim=1).flatten().tolist()
    pixels = view.student_logits.detach().movedim(1, -1).flatten(0, 2).tolist()
    on_images = reference.binary_cross_entropy(pixels, batch.labels.flatten().tolist(), SECOND.new, 4.0)
    coarse = view.student.logits.detach().movedim(1, -1).flatten(0, 2)
    background = [y == 0 and p == 0 for y, p in zip(labels, predicted, strict=True)]
    expected = reference_replay.replayed(
        on_images, logits.flatten(1).tolist(), coarse[:, 3:].tolist(), background, replay._replayed, replay._repeats
    )
    assert 0 < sum(background) < labels.count(0)
    assert found["segmentation"] == pytest.approx(expected, rel=1e-4)
    old = [i for i, (y, p) in enumerate(zip(labels, predicted, strict=True)) if y == 0 and p > 0]
    theirs = cells(view.teacher.embedding, batch.labels)[0]
    held = reference_replay.maintained([rows[i] for i in old], [theirs[i] for i in old])
    assert found["features"] == pytest.approx(5 * held, rel=1e-4)
    units = [reference_replay.unit(f) for f in rows]
    centres = [reference_replay.unit(m) for c, m in reference.class_means(units, labels, 5).items() if c in SECOND.new]
    apart = reference_replay.separated(centres, replay.memory["direction"][1:].tolist())
    assert found["separation"] == pytest.approx(0.05 * apart, rel=1e-4)
    extended = [p if y == 0 else y for y, p in zip(labels, predicted, strict=True)]
    undecided = reference_replay.hesitation(coarse.softmax(dim=1).tolist(), extended)
    assert found["uncertainty"] == pytest.approx(0.1 * undecided, rel=1e-4)


def test_the_same_seed_replays_the_same_and_no_more_than_the_batch_has_cells() -> None:
    for mixture in (None, 2):
        part = FeatureReplay(mixture=mixture)
        _, second = grown(part)
        part.begin(second)
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(part._made_up(most=7))
        assert drawn[0].shape == (7, second.student.trained_head.channels)
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
        part._replayed = 0.0
        assert len(part._made_up(most=7)) == 0


def test_mixtures_and_drift_follow_the_network() -> None:
    part = FeatureReplay(mixture=2, drift=True)
    _, second = grown(part)
    with torch.no_grad():  # sure of class 1 everywhere, before and after
        for model in (second.teacher, second.student):
            assert model is not None
            model.trained_head.heads[0].get_parameter("bias").copy_(torch.tensor([1000.0, -1000.0]))
    before = {name: value.clone() for name, value in part.memory.items()}
    part.begin(second)
    part.gather(second)
    assert second.teacher is not None
    old, labels, _ = seen(second.teacher, SECOND.new)
    new, _, _ = seen(second.student, SECOND.new)
    background = [i for i, y in enumerate(labels) if y == 0]
    rate = min(len(background) / before["pixels"][1].item(), 1)
    for values, name in (
        ([[reference_replay.unit(f) for f in features] for features in (new, old)], "direction"),
        ([new, old], "means"),
    ):
        after, earlier = (reference_replay.mean([rows[i] for i in background]) for rows in values)
        moved = [rate * (a - b) for a, b in zip(after, earlier, strict=True)]
        expected = before[name][1] + torch.tensor(moved)
        expected = torch.nn.functional.normalize(expected, dim=0) if name == "direction" else expected
        torch.testing.assert_close(part.memory[name][1], expected, rtol=1e-3, atol=1e-5)
    assert torch.equal(part.memory["direction"][2], before["direction"][2]), "nothing was seen of it"
    torch.testing.assert_close(part.memory["shares"].sum(dim=1)[1:], torch.ones(4))


def test_sums_and_what_is_refused() -> None:
    for text in ("star+ucd", "star+ewf", "ucd+star+ewf", "star+dkd"):
        parts = [type(part).__name__ for part in methods.parse(text).parts]
        assert "FeatureReplay" in parts
        assert not {"CrossEntropy", "ExtendedMapCrossEntropy", "WeightedBinaryCrossEntropy"} & set(parts)
    assert not any(isinstance(part, UncertaintyConstraint) for part in methods.parse("star").parts)
    with pytest.raises(InputError, match="1×1 convolutions"):
        FeatureReplay().check_network(network(kernel=3))


def test_fused_weights_are_what_it_remembers() -> None:
    method = methods.parse("star+ewf")
    replay = method.parts[0]
    assert isinstance(replay, FeatureReplay)
    _, second = grown(replay)
    method.begin(second)
    method.end(second)
    alone = FeatureReplay()
    alone.memory = {name: value[:3] for name, value in replay.memory.items()}
    alone.begin(second)
    alone.gather(second)  # the student holds the fused weights by now
    assert torch.equal(alone.memory["direction"], replay.memory["direction"])


def terms_of() -> dict[str, Tensor]:
    """What is remembered of two steps, and the losses of a batch; in a process of two, of its half of the images."""
    part = FeatureReplay(separation=1.0, mixture=2, drift=True)
    _, second = grown(part)
    remembered = {f"first {name}": value for name, value in part.memory.items()}
    part.begin(second)
    batch, others = share(batch_of(SECOND.new, seed=9)), (OldFeatureDistillation(1.0), UncertaintyConstraint(1.0))
    part._made_up = lambda **_: part._remembered().direction[1:]  # type: ignore[method-assign]  # drawn per process
    view = viewed(methods.parse("star"), second, batch)
    terms = {**part.losses(view), **others[0].losses(view), **others[1].losses(view)}
    parameters = [parameter for parameter in second.student.parameters() if parameter.requires_grad]
    gradients = {}
    for name, value in terms.items():
        found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        gradients[f"gradient of {name}"] = torch.cat([g.flatten() for g in found if g is not None])
    part.gather(second)
    counted = {"missing": part._missing, "repeats": torch.tensor(part._repeats)}
    values = {name: value.detach() for name, value in terms.items()}
    return {**remembered, **values, **gradients, **counted, **part.memory}


def worker(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    torch.save(terms_of(), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one_on_the_joined_batch(tmp_path: Path) -> None:
    mp.spawn(worker, args=(str(tmp_path),), nprocs=WORLD)  # type: ignore[attr-defined, no-untyped-call]
    by_rank = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(WORLD)]
    for name, expected in terms_of().items():
        if name.removeprefix("first ") in ("shares", "means", "stds"):  # fitted to features drawn in each process
            assert torch.equal(by_rank[0][name], by_rank[1][name]), name
            continue
        found = torch.stack([values[name] for values in by_rank]).mean(dim=0)  # as DistributedDataParallel takes it
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-5, msg=name)
