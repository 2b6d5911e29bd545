import pytest
import torch

import reference
from incseg.losses import channel_importance, combined_heads, with_mean_norm


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def test_importance_equals_its_definition() -> None:
    features, probs, weights = normal(9, 5).relu(), normal(9, 3).softmax(1), normal(3, 5)
    weights[1, 2] = 0
    features[4] *= -1
    expected = reference.channel_importance(features.tolist(), probs.tolist(), weights.tolist())
    torch.testing.assert_close(channel_importance(features, probs, weights), torch.tensor(expected).double())
    assert not channel_importance(features[:0], probs[:0], weights).any()


def test_heads_are_combined_channel_by_channel() -> None:
    matrices, vectors, weights = normal(2, 3, 5), normal(2, 3), normal(3, 5)
    pairs = zip(matrices.tolist(), vectors.tolist(), strict=True)
    expected = [reference.combined_head(matrix, vector, weights.tolist()) for matrix, vector in pairs]
    torch.testing.assert_close(combined_heads(matrices, vectors, weights), torch.tensor(expected).double())


def test_new_heads_are_as_long_as_old_ones_on_average() -> None:
    new, old = normal(2, 5), 7 * normal(3, 5)
    found = with_mean_norm(new, old)
    assert float(found.norm(dim=1).mean()) == pytest.approx(float(old.norm(dim=1).mean()))
    torch.testing.assert_close(found / found[0, 0], new / new[0, 0])
    assert not with_mean_norm(torch.zeros(2, 5), old.float()).any()
