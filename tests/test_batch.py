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
