"""NeST: before a step new heads are formed from old ones and tuned."""

import copy
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import reference
from incseg import losses, methods
from incseg.batch import Batch
from incseg.config import OptimConfig
from incseg.errors import InputError
from incseg.methods.tuned_heads import STRIDE, HeadTuning, OldHeads, TunedInitialisation, _importance
from incseg.models import Architecture, Segmenter
from incseg.protocol import steps
from samples import context

FIRST, SECOND = steps("2-2", 4)


@pytest.fixture
def prepared() -> tuple[Segmenter, Segmenter, list[Batch]]:
    torch.manual_seed(0)
    student = Segmenter(Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}), [3])
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    student.trained_head.grow(2)
    labels = torch.tensor([0, 0, 3, 4, 255])[torch.randint(0, 5, (2, 2, 4, 4))]
    labels = labels.repeat_interleave(8, 2).repeat_interleave(8, 3)
    batches = [Batch(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8), part) for part in labels]
    return student, teacher, batches


def test_importance_is_the_mean_over_the_pixels_of_a_class(prepared: tuple[Segmenter, Segmenter, list[Batch]]) -> None:
    student, teacher, batches = prepared
    found, number = _importance(context(SECOND, student, teacher, lambda: batches), teacher, OldHeads.of(teacher))
    assert number == len(batches)
    for index, channel in enumerate(SECOND.new):
        pixels, logits = list[list[float]](), list[list[float]]()
        for batch in batches:
            outputs = teacher(batch.images)
            chosen = batch.labels[:, STRIDE // 2 :: STRIDE, STRIDE // 2 :: STRIDE] == channel
            for kept, full in ((pixels, outputs.embedding), (logits, outputs.logits)):
                kept.extend(F.interpolate(full, (8, 8), mode="bilinear").movedim(1, -1)[chosen].tolist())
        probs = [reference.softmax(z) for z in logits]
        total = reference.channel_importance(pixels, probs, OldHeads.of(teacher).weights.tolist())
        torch.testing.assert_close(found[index], torch.tensor(total) / len(pixels), rtol=1e-4, atol=1e-6)


def test_heads_begin_with_importance_and_background_as_it_was() -> None:
    old = OldHeads(torch.randn(3, 5), torch.randn(3))
    importance = torch.rand(2, 3, 5)
    tuning, embedding = HeadTuning(old, importance), torch.randn(2, 5, 4, 4)
    logits = tuning(embedding)
    torch.testing.assert_close(logits[:, :3], F.conv2d(embedding, old.weights[:, :, None, None], old.biases))
    shares = [reference.softmax([sum(row) for row in matrix]) for matrix in importance.tolist()]
    heads = [
        reference.combined_head(m, v, old.weights.tolist()) for m, v in zip(importance.tolist(), shares, strict=True)
    ]
    expected = F.conv2d(embedding, torch.tensor(heads)[:, :, None, None], old.biases[:1].repeat(2))
    torch.testing.assert_close(logits[:, 3:], expected, rtol=1e-4, atol=1e-5)


def test_tuning_lowers_the_loss_and_touches_the_new_head_and_background_alone(
    prepared: tuple[Segmenter, Segmenter, list[Batch]],
) -> None:
    student, teacher, batches = prepared
    before = copy.deepcopy(student.state_dict())

    @torch.no_grad()
    def loss_after(epochs: int) -> float:
        begun = replace(context(SECOND, student, teacher, lambda: batches), optim=OptimConfig())
        with torch.enable_grad():
            TunedInitialisation(epochs, rate=300.0).begin(begun)
        outputs = [teacher(batch.images) for batch in batches]
        logits = [outputs[i]._replace(logits=student.classifier(outputs[i].embedding, ())) for i in range(len(outputs))]
        return sum(
            float(losses.unbiased_cross_entropy(o.scores_for(b.labels), b.labels, old_classes=3))
            for o, b in zip(logits, batches, strict=True)
        )

    assert loss_after(epochs=8) < loss_after(epochs=1)
    after, old = student.state_dict(), OldHeads.of(teacher).weights
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"classifier.heads.0.weight", "classifier.heads.1.weight", "classifier.heads.1.bias"}
    assert torch.equal(after["classifier.heads.0.weight"][1:], before["classifier.heads.0.weight"][1:])
    lengths = after["classifier.heads.1.weight"].flatten(1).norm(dim=1).mean()
    assert math.isclose(float(lengths), float(old.norm(dim=1).mean()), rel_tol=1e-5)
    assert math.isclose(float(after["classifier.heads.0.weight"][0].norm()), float(old[0].norm()), rel_tol=1e-5)


def test_two_processes_tune_what_one_tunes(
    prepared: tuple[Segmenter, Segmenter, list[Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads stand for them: they meet wherever processes add up."""
    student, teacher, batches = prepared

    def tuned(rank: int, shares: int) -> dict[str, Tensor]:
        own = copy.deepcopy(student)
        of_rank = [Batch(*(half.chunk(shares)[rank] for half in batch[:2])) for batch in batches]
        TunedInitialisation(3, rate=300.0).begin(context(SECOND, own, teacher, lambda: of_rank))
        return own.classifier.state_dict()

    alone = tuned(0, shares=1)
    meeting, brought = threading.Barrier(2, timeout=60), dict[int, Tensor]()

    def added(values: Tensor) -> Tensor:
        brought[threading.get_ident()] = values
        meeting.wait()
        total = brought[min(brought)] + brought[max(brought)]
        meeting.wait()
        return total

    monkeypatch.setattr(losses, "process_count", lambda: 2)
    monkeypatch.setattr(losses, "sum_over_processes", added)
    with ThreadPoolExecutor(2) as both:
        found = list(both.map(lambda rank: tuned(rank, shares=2), range(2)))
    for name, expected in alone.items():
        assert torch.equal(found[0][name], found[1][name])
        torch.testing.assert_close(found[0][name], expected, rtol=1e-4, atol=1e-5)


def test_it_takes_the_place_of_balanced_initialisation_and_refuses_wide_heads() -> None:
    for method in ("mib+nest", "nest+plop"):
        parts = methods.parse(method).parts
        assert [type(p).__name__ for p in parts if isinstance(p, methods.Initialisation)] == ["TunedInitialisation"]
    wide = Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 8}, classifier_kernel=3)
    with pytest.raises(InputError, match="'nest' combines heads of 1×1 convolutions, and this network has 3×3"):
        methods.parse("nest").check_network(Segmenter(wide, [3]))
