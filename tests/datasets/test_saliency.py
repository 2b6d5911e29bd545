"""Saliency maps travel in the highest bit of the mask's ids; what is wrong with them is said at once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from incseg.datasets import Source, open_source
from incseg.datasets.saliency import SALIENT_IDS, SalientSplit, require_maps
from incseg.errors import InputError
from incseg.images import read_saliency
from samples import into_subfolders, write_folder, write_saliency


def test_ids_and_salient_ids_have_no_number_in_common() -> None:
    assert tuple(range(127, 255)) == SALIENT_IDS
    assert sorted({*range(127), 255, *SALIENT_IDS}) == list(range(256))


def test_a_mask_says_also_what_is_salient(tmp_path: Path) -> None:
    source = open_source("folder", into_subfolders(write_folder(tmp_path / "data", 4, 2), ["a", "b"]))
    maps = write_saliency(source.train, tmp_path / "maps", shown=(0, 3, 255))
    require_maps(source, maps)
    split = SalientSplit(source.train, maps)
    seen = set()
    for index in range(len(split)):
        ids, both = source.train.mask(index).numpy(), split.mask(index).numpy()
        salient = np.isin(ids, (0, 3, 255))
        assert (both[~salient] == ids[~salient]).all()
        assert (both[salient] == np.where(ids[salient] == 255, 127, ids[salient] + 128)).all()
        assert both.dtype == np.uint8
        assert split.files(index) == (*source.train.files(index), maps / f"{split.ids[index]}.png")
        seen |= set(np.unique(both))
    assert {1, 2, 4, 127, 128, 131} <= seen


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (np.array([[0, 127, 128, 255]], np.uint8), [[False, False, True, True]]),
        (np.array([[0, 1, 1, 0]], np.uint8), [[False] * 4]),  # of 8 bits, and nothing stands out
        (np.array([[False, True]]), [[False, True]]),
        (np.zeros((1, 2), np.uint8), [[False, False]]),
        (np.repeat(np.array([[[0], [200]]], np.uint8), 3, axis=2), [[False, True]]),  # grey as red, green and blue
    ],
)
def test_what_counts_as_salient(pixels: np.ndarray, expected: list[list[bool]], tmp_path: Path) -> None:
    Image.fromarray(pixels).save(tmp_path / "map.png")
    assert read_saliency(tmp_path / "map.png").tolist() == expected


def palette_map(*colours: tuple[int, int, int]) -> Image.Image:
    """(1, N) each pixel of another colour of a palette."""
    image = Image.fromarray(np.arange(len(colours), dtype=np.uint8)[None], mode="P")
    image.putpalette([value for colour in colours for value in colour])
    return image


def test_a_palette_is_read_as_what_it_shows(tmp_path: Path) -> None:
    palette_map((255, 255, 255), (0, 0, 0), (200, 200, 200)).save(tmp_path / "map.png")
    assert read_saliency(tmp_path / "map.png").tolist() == [[True, False, True]]
    palette_map((255, 0, 0)).save(tmp_path / "map.png")
    with pytest.raises(InputError, match=r"map\.png holds P values, not 8-bit grey"):
        read_saliency(tmp_path / "map.png")


@pytest.mark.parametrize("pixels", [np.array([[[255, 0, 0]]], np.uint8), np.array([[40000]], np.uint16)])
def test_colours_and_deeper_grey_are_refused(pixels: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(pixels).save(tmp_path / "map.png")
    with pytest.raises(InputError, match=r"map\.png holds .* values, not 8-bit grey"):
        read_saliency(tmp_path / "map.png")


def remove_two(maps: Path) -> None:
    for name in ("001", "003"):
        (maps / f"{name}.png").unlink()


def colour(maps: Path) -> None:
    Image.new("RGB", (64, 64), "red").save(maps / "002.png")


def enlarge(maps: Path) -> None:
    Image.new("L", (65, 64)).save(maps / "002.png")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda maps: maps.rename(maps.parent / "elsewhere"),
            "saliency .*maps is not a folder; it must hold",
        ),
        (
            remove_two,
            r"001\.png is missing \(and 1 more\): --data.saliency needs a grey PNG for each of the 4",
        ),
        (colour, r"the saliency map .*002\.png holds RGB values, not 8-bit grey"),
        (enlarge, r"the saliency map .*002\.png is 65×64 but its image is 64×64"),
        (lambda maps: (maps / "000.png").write_bytes(b"no"), r"the saliency map .*000\.png cannot be read"),
    ],
)
def test_maps_that_are_not_there_or_do_not_fit_are_refused(
    change: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    source = open_source("folder", write_folder(tmp_path / "data", 4, 2))
    maps = write_saliency(source.train, tmp_path / "maps", shown=(3,))
    require_maps(source, maps)
    change(maps)
    with pytest.raises(InputError, match=said):
        require_maps(source, maps)


def test_more_classes_than_half_a_byte_leaves_room_for_are_refused(tiny_folder: Path) -> None:
    tiny = open_source("folder", tiny_folder)
    many = Source("many", tuple(f"class {index}" for index in range(128)), tiny.train, tiny.val)
    with pytest.raises(InputError, match=r"at most 126 classes and background, .* and many has 127: leave it out"):
        require_maps(many, tiny_folder)
