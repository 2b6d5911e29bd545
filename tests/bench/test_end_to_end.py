from pathlib import Path

import pytest

from incseg.bench import end_to_end, photos
from incseg.bench.end_to_end import benchmark_train
from incseg.bench.photos import photo_folder
from incseg.datasets import open_source
from incseg.errors import InputError

DECODER = {"decoder": "deeplabv3plus", "decoder_options": {"decoder_channels": 16}}
SMALL = {
    "data": {"crop_size": 64, "workers": 0},
    "optim": {"batch_size": 4},
    "model": {"encoder": "test_resnet", **DECODER},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WARM_UP", 1), ("SECONDS", 0.0), ("FEWEST", 2)):
        monkeypatch.setattr(end_to_end, name, value)


def test_methods_are_trained_beside_ft_with_their_data(tiny_folder: Path) -> None:
    table = benchmark_train(["ewc", "ft"], "folder/2-2/overlapped", tiny_folder, "cpu", SMALL)
    assert [row[0] for row in table.rows] == ["ft", "ewc"]
    assert table.rows[0][3] == "1.00"
    for _, rate, images, relative, waited in table.rows:
        assert float(images) == pytest.approx(4 * float(rate), abs=0.6)
        assert float(relative) == pytest.approx(float(table.rows[0][1]) / float(rate), rel=0.05)
        assert 0 <= float(waited.rstrip("%")) <= 100
    assert "test_resnet, 4 × 64²" in table.title


def test_sizes_that_cannot_be_are_refused_in_a_sentence(tiny_folder: Path) -> None:
    def refusal(**optim: int) -> str:
        with pytest.raises(InputError) as caught:
            benchmark_train([], "folder/2-2/overlapped", tiny_folder, "cpu", {**SMALL, "optim": optim})
        return str(caught.value)

    assert "at least two for its batch normalisation" in refusal(batch_size=1)
    assert "is far above the" in refusal(batch_size=10**6)


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory. Tried to allocate 9 GiB"), MemoryError()])
def test_a_device_without_room_is_told_of_in_a_sentence(
    error: Exception, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise error

    monkeypatch.setattr(end_to_end, "build", build)
    with pytest.raises(
        InputError, match="4 crops of 64 pixels with 'test_resnet' and 'ft' need more memory than there"
    ):
        benchmark_train([], "folder/2-2/overlapped", tiny_folder, "cpu", SMALL)


def test_a_folder_without_a_protocol_and_a_single_step_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match="--data-root needs --recipe PROTOCOL"):
        benchmark_train([], data_root=tiny_folder)
    with pytest.raises(InputError, match="shapes/offline has a single step"):
        benchmark_train([], "shapes/offline")


def test_generated_photos_are_jpegs_of_the_usual_size_and_are_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "TRAIN", 3)
    monkeypatch.setattr(photos, "VAL", 1)
    with photo_folder() as root:
        source = open_source("folder", root)
        assert source.train.image(0).shape == (3, 375, 500)
        assert source.train.mask(2).shape == (375, 500)
        assert {path.suffix for path in (root / "images").iterdir()} == {".jpg"}
        assert (len(source.train), len(source.val)) == (3, 1)
    assert not root.exists()
