import pytest
import torch
from torch import nn

import reference
from incseg.models.branched import BranchedHead
from incseg.models.closed_form import ClosedFormHead, FeatureLayout
from incseg.models.heads import Head, SigmoidHead, SoftmaxHead, TrainedHead

TRAINED = [SoftmaxHead, SigmoidHead, BranchedHead]


@pytest.mark.parametrize("kind", TRAINED)
def test_it_grows_by_one_head_per_step_and_keeps_what_was_there(kind: type[TrainedHead]) -> None:
    classifier = kind(8, [4]).eval()
    embedding = torch.randn(2, 8, 3, 3)
    before = classifier(embedding)
    classifier.grow(2)
    classifier.grow(1)
    classifier.eval()
    assert classifier.head_sizes == [4, 2, 1]
    assert classifier(embedding).shape == (2, 7, 3, 3)
    assert torch.equal(classifier(embedding)[:, :4], before)


def test_the_class_of_a_sigmoid_head_is_the_surest_yes_and_background_where_none_says_yes() -> None:
    torch.manual_seed(0)
    classifier, embedding = SigmoidHead(8, [3, 2]), 3 * torch.randn(4, 8, 5, 5)
    scores = classifier(embedding)
    answers = torch.cat([head(embedding) for head in classifier.heads], dim=1).sigmoid()
    surest, chosen = answers.max(dim=1)
    assert torch.equal(scores.argmax(dim=1), torch.where(surest > 0.5, chosen + 1, 0))
    assert set(scores.argmax(dim=1).unique().tolist()) == {0, 1, 2, 3, 4}
    assert not scores[:, 0].any()
    assert sum(parameter.numel() for parameter in classifier.parameters()) == 4 * (8 + 1)  # none for background


def test_probabilities_of_a_sigmoid_head_are_those_of_at_most_one_yes() -> None:
    logits = [-2.0, 0.5, 1.5, 0.0]
    scores = torch.tensor([0.0, *logits], dtype=torch.float64)[None, :, None, None]
    found = SigmoidHead(8, [3, 2]).probabilities(scores).flatten()
    assert found.tolist() == pytest.approx(reference.at_most_one_yes(logits), rel=1e-12)


def test_balanced_initialisation_shares_background_and_leaves_old_classes_alone() -> None:
    torch.manual_seed(0)
    classifier = SoftmaxHead(8, [4, 2])
    embedding = torch.randn(5, 8, 3, 3)
    with torch.no_grad():
        before = classifier(embedding).softmax(1)
        classifier.grow(3)
        classifier.balance_new_head()
        after = classifier(embedding).softmax(1)
    torch.testing.assert_close(after[:, 1:6], before[:, 1:6])
    for channel in (0, 6, 7, 8):
        torch.testing.assert_close(after[:, channel], before[:, 0] / 4)


def test_balancing_the_first_head_is_a_no_op() -> None:
    classifier = SoftmaxHead(8, [4])
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    classifier.balance_new_head()
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())


@pytest.mark.parametrize("seed", [0, 1])
def test_new_heads_follow_the_seed(seed: int) -> None:
    def grown() -> torch.Tensor:
        torch.manual_seed(seed)
        classifier = SoftmaxHead(4, [2])
        classifier.grow(3)
        return torch.cat([p.flatten() for p in classifier.parameters()])

    assert torch.equal(grown(), grown())


def test_new_heads_are_initialised_as_pytorch_does() -> None:
    torch.manual_seed(3)
    classifier = SoftmaxHead(4, [2])
    torch.manual_seed(3)
    expected = nn.Conv2d(4, 2, 1)
    assert torch.equal(classifier.get_parameter("heads.0.weight"), expected.weight)
    assert expected.bias is not None
    assert torch.equal(classifier.get_parameter("heads.0.bias"), expected.bias)


@pytest.mark.parametrize("kind", TRAINED)
def test_logits_are_in_float32_under_mixed_precision(kind: type[TrainedHead]) -> None:
    classifier, embedding = kind(64, [3]), torch.randn(2, 64, 5, 5)
    expected = classifier(embedding.bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        logits = classifier(embedding.bfloat16())
    assert logits.dtype == torch.float32
    assert torch.equal(logits, expected)


SOLVED = ClosedFormHead(FeatureLayout(channels=(8,), strides=(16,), width=5), [2, 1])


@pytest.mark.parametrize("head", [SoftmaxHead(8, [2, 1]), SigmoidHead(8, [2, 1]), BranchedHead(8, [2, 1]), SOLVED])
def test_probabilities_sum_to_one_and_keep_the_order_of_the_scores(head: Head) -> None:
    scores = torch.tensor([[0.9, 0.2, -0.3], [0.1, 0.3, 0.2]])[:, :, None, None].expand(2, 3, 4, 5)
    probabilities = head.probabilities(scores)
    assert probabilities.shape == (2, 3, 4, 5)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(2, 4, 5))
    assert torch.equal(probabilities.argsort(dim=1), scores.argsort(dim=1))


def test_scores_of_a_solved_head_are_probabilities_up_to_clipping() -> None:
    found = SOLVED.probabilities(torch.tensor([[0.75, 0.25, -0.5], [1.5, 0.25, 0.0]])[:, :, None, None])[..., 0, 0]
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.25, 0.0], [0.8, 0.2, 0.0]]), atol=2e-6, rtol=0)
    assert found.min() > 0  # so that its logarithm exists
