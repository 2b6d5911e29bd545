"""Batches on their way to a device."""

import torch

from incseg.batch import Batch

CPU = torch.device("cpu")


def test_a_batch_keeps_all_its_fields() -> None:
    batch = Batch(*(torch.full((1, 2, 2), value, dtype=torch.uint8) for value in range(len(Batch._fields))))
    for other in (batch.to(CPU), batch.clone()):
        assert [int(field.max()) for field in other if field is not None] == [0, 1, 2, 3]
    assert batch.to(CPU).labels.dtype == torch.int64
    assert Batch(batch.images, batch.labels).to(CPU).salient is None


def test_every_piece_has_its_share_of_the_replayed_images() -> None:
    images, replayed = torch.arange(8)[:, None], torch.tensor([0, 0, 0, 0, 1, 2, 3, 4])
    pieces = Batch(images, images, replayed).pieces(2)
    assert all(piece.salient is None for piece in pieces)
    assert [int((piece.replayed > 0).sum()) for piece in pieces if piece.replayed is not None] == [2, 2]
    assert sorted(int(index) for piece in pieces for index in piece.images) == list(range(8))
