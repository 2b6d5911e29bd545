import pytest
import torch

import reference
from incseg.losses import attraction, class_means, prototype_matching, repulsion, sparsity


def example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(3, 7, 4, dtype=torch.float64, generator=generator)
    labels = torch.tensor([0, 1, 3, 255, -1])[torch.randint(0, 5, (3, 7), generator=generator)]
    return features, labels


def test_equals_its_definition_group_by_group() -> None:
    features, labels = example()
    means, ids = class_means(features, labels, num_classes=5)
    assert means.shape == (3, 5, 4)
    for group in range(3):
        expected = reference.class_means(features[group].tolist(), labels[group].tolist(), 5)
        assert [c for c in ids[group].tolist() if c >= 0] == sorted(expected)
        for c, mean in expected.items():
            assert means[group, c].tolist() == pytest.approx(mean)
        assert all(means[group, c].abs().max() == 0 for c in range(5) if c not in expected)


def test_gradients_and_the_order_of_pixels() -> None:
    features, labels = example()
    features.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: class_means(f, labels, num_classes=5)[0], features)
    torch.testing.assert_close(
        class_means(features.flip(1), labels.flip(1), num_classes=5)[0], class_means(features, labels, num_classes=5)[0]
    )


def test_empty_groups() -> None:
    means, ids = class_means(torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.int64), num_classes=3)
    assert means.shape == (2, 3, 4)
    assert ids.unique().tolist() == [-1]


def flat() -> tuple[torch.Tensor, torch.Tensor]:
    features, labels = example()
    return features.flatten(0, 1), labels.flatten()


PROTOTYPES = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_attraction_and_sparsity_equal_their_definitions() -> None:
    features, labels = flat()
    rows, ids = features.tolist(), labels.tolist()
    expected = reference.attraction(rows, ids, PROTOTYPES.tolist())
    assert float(attraction(features, labels, PROTOTYPES, num_classes=5)) == pytest.approx(expected)
    assert float(sparsity(features, labels, num_classes=5)) == pytest.approx(reference.sparsity(rows, ids, 5))


def test_repulsion_equals_its_definition() -> None:
    means, present = torch.randn(4, 3, dtype=torch.float64), torch.tensor([True, False, True, True])
    assert float(repulsion(means, present)) == pytest.approx(reference.repulsion(means[present].tolist()))
    assert float(repulsion(means, torch.tensor([True, False, False, False]))) == 0


def test_matching_counts_the_classes_that_are_present() -> None:
    means, prototypes = torch.randn(3, 4), torch.randn(3, 4)
    present = torch.tensor([True, False, True])
    expected = sum(reference.squared_distance(means[c].tolist(), prototypes[c].tolist()) / 4 for c in (0, 2)) / 2
    assert float(prototype_matching(means, prototypes, present)) == pytest.approx(expected, rel=1e-5)
    assert float(prototype_matching(means, prototypes, torch.zeros(3, dtype=torch.bool))) == 0


def test_gradients_of_the_shaping_losses() -> None:
    features, labels = flat()
    features = features.exp().requires_grad_()
    assert torch.autograd.gradcheck(lambda f: attraction(f, labels, PROTOTYPES, num_classes=5), features)
    assert torch.autograd.gradcheck(lambda f: sparsity(f, labels, num_classes=5), features)  # also by the maximum
    means = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    present = torch.tensor([True, False, True, True])
    assert torch.autograd.gradcheck(lambda m: repulsion(m, present), means)


def test_no_pixel_no_loss() -> None:
    features, labels = flat()
    features.requires_grad_()
    outside = torch.full_like(labels, -1)
    loss = attraction(features, outside, PROTOTYPES, num_classes=5) + sparsity(features, outside, num_classes=5)
    loss = loss + sparsity(torch.zeros_like(features), labels, num_classes=5)
    loss.backward()
    assert loss.item() == 0
    assert features.grad is not None
    assert features.grad.abs().max() == 0
