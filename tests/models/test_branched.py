"""SSUL's head: branches, and an unknown that becomes background."""

import torch

from incseg.models.branched import BranchedHead


def example() -> tuple[BranchedHead, torch.Tensor]:
    torch.manual_seed(0)
    head, embedding = BranchedHead(8, [3, 2]).double(), 3 * torch.randn(4, 8, 5, 5, dtype=torch.float64)
    with torch.no_grad():
        for branch in head.branches:
            branch[-1].get_parameter("weight").mul_(4)
    return head, embedding


def test_background_is_what_is_unknown_or_background() -> None:
    head, embedding = example()
    unknown, background, *classes = (branch(embedding) for branch in head.branches)
    trained = head(embedding)
    torch.testing.assert_close(trained, torch.cat([background, *classes, unknown], dim=1))
    head.eval()
    with torch.no_grad():
        scores, logits = head(embedding), torch.cat([branch(embedding) for branch in head.branches], dim=1)
    assert scores.shape == (4, 5, 5, 5)
    answers = logits.sigmoid()
    merged = torch.cat([answers[:, :1] + answers[:, 1:2], answers[:, 2:]], dim=1)
    assert torch.equal(scores.argmax(dim=1), merged.argmax(dim=1))
    assert set(scores.argmax(dim=1).unique().tolist()) == {0, 1, 2, 3, 4}
    below_one = merged[:, 0] < 0.999
    torch.testing.assert_close(scores[:, 0].sigmoid()[below_one], merged[:, 0][below_one])
    torch.testing.assert_close(scores[:, 1:], logits[:, 2:])


def test_scores_are_finite_however_sure_the_branches_are() -> None:
    head, embedding = example()
    for size in (1e3, -1e3):
        with torch.no_grad():
            for branch in head.branches[:2]:
                branch[-1].get_parameter("weight").zero_()
                branch[-1].get_parameter("bias").fill_(size)
        scores = head.float().eval()(embedding.float())
        assert scores.isfinite().all()
        assert (scores[:, 0] > 0).all() == (size > 0)


def test_new_classes_begin_as_what_is_unknown() -> None:
    head, embedding = example()
    head(embedding)  # statistics of batch normalisation differ from their initial values
    head.grow(2)
    head.double().begin_with_unknown()
    head.eval()
    unknown, newest = head.branches[0](embedding), head.branches[-1](embedding)
    torch.testing.assert_close(newest, unknown.expand(-1, 2, -1, -1))
    assert head.head_sizes == [3, 2, 2]
    assert not torch.equal(head.branches[1](embedding), unknown)
