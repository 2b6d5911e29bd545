from typing import Any

import pytest

from incseg.loading import BatchAddresses


def test_an_epoch_shows_whole_batches_of_different_images() -> None:
    drawn = list(BatchAddresses(images=10, batch_size=4, epochs=2, seed=1))
    assert len(drawn) == 4
    for epoch in (drawn[:2], drawn[2:]):
        positions = [position for batch in epoch for position, _ in batch]
        assert len(set(positions)) == 8
    assert drawn[:2] != drawn[2:]


def test_a_stream_can_start_anywhere() -> None:
    whole = list(BatchAddresses(images=10, batch_size=4, epochs=5, seed=1))
    for start in range(10):
        assert list(BatchAddresses(images=10, batch_size=4, epochs=5, seed=1, start=start)) == whole[start:]


def test_processes_share_each_global_batch() -> None:
    whole = list(BatchAddresses(images=10, batch_size=4, epochs=3, seed=1))
    shares = [list(BatchAddresses(images=10, batch_size=4, epochs=3, seed=1, rank=r, world_size=2)) for r in (0, 1)]
    for batch, first, second in zip(whole, *shares, strict=True):
        assert sorted(batch) == sorted(first + second)
        assert len(first) == len(second) == 2


def test_fewer_images_than_a_batch_are_repeated() -> None:
    (batch,) = BatchAddresses(images=3, batch_size=8, epochs=1, seed=1)
    assert len(batch) == 8
    assert {position for position, _ in batch} == {0, 1, 2}


def origins(batch: list[tuple[int, int]]) -> str:
    return "".join("own " if position < 10 else "old " for position, _ in batch)


def test_replayed_images_fill_half_of_every_batch_and_an_epoch_still_shows_every_own_image() -> None:
    addresses = BatchAddresses(images=10, batch_size=4, epochs=2, seed=1, replayed=3)
    drawn = list(addresses)
    assert addresses.per_epoch == 5
    assert [origins(batch) for batch in drawn] == ["own own old old "] * 10
    for epoch in (drawn[:5], drawn[5:]):
        assert {position for batch in epoch for position, _ in batch} == {*range(10), 10, 11, 12}


def test_replayed_images_may_take_turns_with_the_steps_own() -> None:
    addresses = BatchAddresses(images=10, batch_size=4, epochs=1, seed=1, replayed=3, alternate=True)
    assert [origins(batch) for batch in addresses] == ["own own own own ", "old old old old "] * 2


@pytest.mark.parametrize("alternate", [False, True])
def test_a_stream_with_replay_can_start_anywhere_and_be_shared(alternate: bool) -> None:
    def stream(**place: Any) -> list[list[tuple[int, int]]]:
        return list(BatchAddresses(10, 4, epochs=2, seed=1, replayed=3, alternate=alternate, **place))

    whole = stream()
    for start in range(len(whole) + 1):
        assert stream(start=start) == whole[start:]
    for batch, first, second in zip(whole, stream(rank=0, world_size=2), stream(rank=1, world_size=2), strict=True):
        assert sorted(batch) == sorted(first + second)
        assert len(first) == len(second) == 2


def test_weighted_images_are_drawn_in_proportion_and_from_any_iteration_on() -> None:
    settings: dict[str, Any] = {"images": 3, "batch_size": 2, "epochs": 1000, "seed": 1, "weights": (1.0, 0.0, 3.0)}
    whole = list(BatchAddresses(**settings))
    drawn = [position for batch in whole for position, _ in batch]
    assert drawn.count(1) == 0
    assert drawn.count(2) / len(drawn) == pytest.approx(0.75, abs=0.05)
    assert list(BatchAddresses(**settings, start=700)) == whole[700:]
    assert {len(batch) for batch in BatchAddresses(images=3, batch_size=8, epochs=1, seed=1, weights=(1, 1, 1))} == {8}
