import pytest
import torch

import reference
from incseg.losses import class_means


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
