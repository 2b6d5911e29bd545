"""What is remembered of features, and the losses of STAR and Adapter, against their definitions."""

import math

import pytest
import torch
from torch import Tensor

import reference_replay as reference
from incseg.losses import (
    FeatureModel,
    drifted,
    feature_model,
    feature_sums,
    hesitation,
    made_up_features,
    masked_distillation,
    similarity_separation,
    with_replayed_negatives,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


FEATURES = random(20, 4).abs() + 0.1
LABELS = torch.tensor([0, 1, 1, 255, -1] * 4)


def test_the_memory_of_a_class_equals_its_definition_however_the_batches_are_cut() -> None:
    cuts = ((0, 7), (7, 7), (7, 20))
    sums = [feature_sums(FEATURES[a:b], LABELS[a:b], num_classes=3) for a, b in cuts]
    model = feature_model(torch.stack(sums).sum(dim=0))
    for c in (0, 1):
        found = [value[c].tolist() for value in model]
        direction, noise, norm_mean, norm_std = reference.class_model(FEATURES[c == LABELS].tolist())
        assert found[0] == pytest.approx(direction, rel=1e-5)
        assert found[1] == pytest.approx(noise, rel=1e-5)
        assert found[2:] == pytest.approx([norm_mean, norm_std, LABELS.tolist().count(c)], rel=1e-5)
    assert all(value[2].abs().max() == 0 for value in model), "a class without pixels has no features"


def test_made_up_features_are_like_those_remembered() -> None:
    model = feature_model(feature_sums(FEATURES, LABELS, num_classes=2))
    classes = torch.ones(20_000, dtype=torch.int64)
    noise, norms = random(20_000, 4, seed=1).float(), random(20_000, seed=2).float()
    made_up = made_up_features(model, classes, noise, norms)
    first = model.direction[1] + model.noise[1] * noise[0]
    torch.testing.assert_close(made_up[0], first * (model.norm_mean[1] + model.norm_std[1] * norms[0]))
    truth = FEATURES[LABELS == 1].float()
    assert torch.cosine_similarity(made_up.mean(dim=0), truth.mean(dim=0), dim=0) > 0.99
    still = FeatureModel(model.direction, 0 * model.noise, model.norm_mean, model.norm_std, model.pixels)
    lengths = made_up_features(still, classes, noise, norms).norm(dim=1)  # one length per feature, not per channel
    assert lengths.mean().item() == pytest.approx(model.norm_mean[1].item(), rel=0.01)
    assert lengths.std().item() == pytest.approx(model.norm_std[1].item(), rel=0.02)


def test_replayed_negatives_equal_their_definition() -> None:
    image_loss, features, cells = random(1)[0], random(6, 2, seed=1), random(10, 2, seed=2)
    background = torch.tensor([True, False] * 5)
    expected = reference.replayed(
        image_loss.item(), features.tolist(), cells.tolist(), background.tolist(), count=17.5, repeats=3.0
    )
    found = with_replayed_negatives(image_loss, features, cells, background, replayed=17.5, repeats=3.0)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    plain = with_replayed_negatives(image_loss, features[:0], cells, background, replayed=0.0, repeats=0.0)
    assert plain.item() == image_loss.item()
    leaves = [value.requires_grad_() for value in (image_loss, features, cells)]
    assert torch.autograd.gradcheck(
        lambda a, b, c: with_replayed_negatives(a, b, c, background, replayed=17.5, repeats=3.0), leaves
    )


def test_old_features_are_held_where_they_are_and_nowhere_else() -> None:
    student, teacher, mask = random(2, 3, 2, 2).requires_grad_(), random(2, 3, 2, 2, seed=1), torch.zeros(2, 2, 2) > 0
    empty = masked_distillation(student, teacher, mask)
    empty.backward()
    assert (empty.item(), student.grad.abs().max().item()) == (0, 0)  # type: ignore[union-attr]
    mask[0, 1] = mask[1, 0, 0] = True
    chosen = [value.movedim(1, -1)[mask].tolist() for value in (student, teacher)]
    assert masked_distillation(student, teacher, mask).item() == pytest.approx(reference.maintained(*chosen))
    assert torch.autograd.gradcheck(lambda f: masked_distillation(f, teacher, mask), student)


def test_new_classes_flee_the_nearest_old_one() -> None:
    centres, old = (torch.nn.functional.normalize(random(3, 4, seed=seed), dim=1) for seed in (1, 2))
    present = torch.tensor([True, False, True])
    expected = reference.separated(centres[present].tolist(), old.tolist())
    assert similarity_separation(centres, present, old).item() == pytest.approx(expected)
    centres.requires_grad_()
    assert torch.autograd.gradcheck(lambda c: similarity_separation(c, present, old), centres)
    for some in (
        similarity_separation(centres, ~present & present, old),
        similarity_separation(centres, present, old[:0]),
    ):
        (gradient,) = torch.autograd.grad(some, centres)
        assert (some.item(), gradient.abs().max().item()) == (0, 0)
    on_top = similarity_separation(old[:1].clone().requires_grad_(), present[:1], old)
    assert math.isfinite(on_top.item())


def test_only_cells_that_are_neither_right_nor_sure_are_made_to_decide() -> None:
    probs = random(40, 3, seed=3).mul(2).softmax(dim=1)
    labels = torch.tensor([0, 1, 2, 255] * 10)
    expected = reference.hesitation(probs.tolist(), labels.tolist())
    assert expected > 0
    assert hesitation(probs, labels).item() == pytest.approx(expected)
    assert hesitation(probs, torch.full_like(labels, 255)).item() == 0


def test_what_is_remembered_drifts_by_the_share_that_was_seen() -> None:
    model = feature_model(feature_sums(FEATURES, LABELS, num_classes=3))
    shifts, agreed = random(3, 4, seed=4), torch.tensor([2.0, 100.0, 5.0])
    moved, rate = drifted(model, shifts, agreed)
    assert rate.tolist() == pytest.approx([0.5, 1.0, 0.0])
    for c in (0, 1):
        old, spread, shift = (value[c].tolist() for value in (model.direction, model.noise, shifts))
        direction, noise = reference.drifted(old, spread, shift, agreed[c].item(), model.pixels[c].item())
        assert moved.direction[c].tolist() == pytest.approx(direction, rel=1e-5)
        assert moved.noise[c].tolist() == pytest.approx(noise, rel=1e-5)
    assert torch.equal(moved.noise[2], model.noise[2])
