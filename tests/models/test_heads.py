import pytest
import torch

from incseg.models.heads import SoftmaxHead


def test_it_grows_by_one_head_per_step_and_keeps_what_was_there() -> None:
    classifier = SoftmaxHead(8, [4])
    embedding = torch.randn(2, 8, 3, 3)
    before = classifier(embedding)
    classifier.grow(2)
    classifier.grow(1)
    assert classifier.head_sizes == [4, 2, 1]
    assert classifier(embedding).shape == (2, 7, 3, 3)
    assert torch.equal(classifier(embedding)[:, :4], before)


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
