"""Images kept for scoring: the same as from their files, and read once."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from incseg.datasets.source import Split
from incseg.errors import InputError
from incseg.loading import CentreCrop, ScoredImages
from incseg.loading.remembered import ScoredMemory

TABLE = torch.arange(256).roll(1)


class Counted(Split):
    """Images of several sizes; the third cannot be read."""

    ids = tuple("abcd")

    def __init__(self) -> None:
        self.read: list[int] = []

    def image(self, index: int) -> Tensor:
        self.read.append(index)
        if index == 2:
            raise InputError("c is broken.")
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 256, (3, 9 + index, 12), dtype=torch.uint8, generator=generator)

    def mask(self, index: int) -> Tensor:
        return torch.randint(0, 256, (9 + index, 12), generator=torch.Generator().manual_seed(index + 10))


def images_of(split: Split, indices: Sequence[int], crop: CentreCrop | None) -> ScoredImages:
    return ScoredImages(split, indices, TABLE, crop=crop)


@pytest.fixture(params=[None, 6, 20])
def crop(request: pytest.FixtureRequest) -> CentreCrop | None:
    return None if request.param is None else CentreCrop(request.param)


def test_kept_images_are_those_of_the_files_and_read_once(crop: CentreCrop | None) -> None:
    split, memory = Counted(), ScoredMemory()
    for indices in ([0, 3], [0, 1, 3]):  # a later step is scored on more
        plain = images_of(Counted(), indices, crop)
        kept = memory.kept(images_of(split, indices, crop), range(len(indices)))
        assert kept is not None
        for position in range(len(indices)):
            assert torch.equal(kept[position].images, plain[position].images)
            assert torch.equal(kept[position].labels, plain[position].labels)
    assert sorted(split.read) == [0, 1, 3]


def test_what_cannot_be_read_is_refused_when_it_is_asked_for() -> None:
    kept = ScoredMemory().kept(images_of(Counted(), [1, 2], None), [0, 1])
    assert kept is not None
    assert kept[0].images.shape == (3, 10, 12)
    with pytest.raises(InputError, match="c is broken"):
        kept[1]


def test_a_process_reads_its_own_share() -> None:
    split = Counted()
    ScoredMemory().kept(images_of(split, [0, 1, 3], None), range(1, 3, 2))
    assert split.read == [1]


@pytest.mark.parametrize("most", [4 * 4 * 6**2 - 1, 4 * 4 * 6**2])
def test_many_images_are_read_anew(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("incseg.loading.remembered.MOST_BYTES", most)
    split = Counted()
    kept = ScoredMemory().kept(images_of(split, [0, 1], CentreCrop(6)), [0, 1])
    assert (kept is None, split.read == []) == ((True, True) if most % 2 else (False, False))
