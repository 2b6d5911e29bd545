from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from incseg.loading import CentreCrop, ShortSide, TrainingTransform
from incseg.loading.transforms import draw_crop

ROWS, COLUMNS = 150, 200
ENLARGED = TrainingTransform(256)  # larger than any crop of such an image: every row and column of the crop is seen
SEEDS = range(200)


def position_image(rows: int = ROWS, columns: int = COLUMNS) -> tuple[Tensor, Tensor]:
    """An image whose red is the column and green the row, and a mask that numbers the pixels."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    image = torch.stack([column.clamp(max=255), row, torch.zeros_like(row)]).to(torch.uint8)
    return image, row * columns + column


class Seen(NamedTuple):
    """What a transform cut out, read off the pixel numbers in its mask."""

    top: int
    left: int
    height: int
    width: int
    flipped: bool


def crop_of(mask: Tensor, columns: int = COLUMNS) -> Seen:
    row, column = mask // columns, mask % columns
    top, left = int(row.min()), int(column.min())
    flipped = bool(column[0, 0] > column[0, -1])
    return Seen(top, left, int(row.max()) - top + 1, int(column.max()) - left + 1, flipped)


@pytest.fixture(scope="module")
def crops() -> list[Seen]:
    image, mask = position_image()
    return [crop_of(ENLARGED(image, mask, seed)[1]) for seed in SEEDS]


@pytest.mark.parametrize("shape", [(20, 30), (64, 64), (150, 97)])
def test_training_crops_are_squares_of_the_wanted_size(shape: tuple[int, int]) -> None:
    image, mask = TrainingTransform(64)(*position_image(*shape), seed=1)
    assert image.shape == (3, 64, 64)
    assert image.dtype == torch.uint8
    assert mask.shape == (64, 64)
    assert type(image) is type(mask) is Tensor


def test_the_seed_alone_decides_the_draw() -> None:
    image, mask = position_image()
    torch.manual_seed(1)
    first = ENLARGED(image, mask, seed=5)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    again, other = ENLARGED(image, mask, seed=5), ENLARGED(image, mask, seed=6)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state), "the global random state is left alone"
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (96, 96), (30, 300), (300, 31), (7, 9)])
def test_a_crop_is_drawn_as_torchvision_draws_it(size: tuple[int, int]) -> None:
    crop = v2.RandomResizedCrop(64, scale=(0.5, 2.0), ratio=(3 / 4, 4 / 3))
    for seed in (2**63 - 1, 2**40 + 3, *range(150)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            expected = crop.make_params([torch.empty(3, *size)])
            flipped = bool(torch.rand(1) < 0.5)
        assert draw_crop(size, seed)._asdict() == {**expected, "flipped": flipped}


@pytest.mark.parametrize("size", [64, 256])
def test_image_and_mask_are_cropped_scaled_and_flipped_alike(size: int) -> None:
    """Away from the border, interpolated positions differ from the nearest ones by at most a pixel of the crop."""
    for seed in range(20):
        image, mask = TrainingTransform(size)(*position_image(), seed)
        column, row = (channel[4:-4, 4:-4].int() for channel in image[:2])
        numbers = mask[4:-4, 4:-4]
        scale = max(1, ROWS / size, COLUMNS / size)
        assert (column - numbers % COLUMNS).abs().max() <= scale
        assert (row - numbers // COLUMNS).abs().max() <= scale


def test_crops_cover_at_least_half_of_the_image_and_are_nearly_square(crops: list[Seen]) -> None:
    areas = [crop.height * crop.width / (ROWS * COLUMNS) for crop in crops]
    ratios = [crop.width / crop.height for crop in crops]
    rounding = 0.01  # sides are whole pixels
    assert 0.5 - rounding < min(areas) < 0.55
    assert 0.9 < max(areas) <= 1
    assert 3 / 4 - rounding < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 4 / 3 + rounding


def test_crops_lie_anywhere_and_half_of_them_are_flipped(crops: list[Seen]) -> None:
    assert min(crop.top for crop in crops) == min(crop.left for crop in crops) == 0
    assert max(crop.top + crop.height for crop in crops) == ROWS
    assert max(crop.left + crop.width for crop in crops) == COLUMNS
    assert len({crop.left for crop in crops}) > 30
    assert 80 <= sum(crop.flipped for crop in crops) <= 120


def test_where_no_such_crop_fits_the_middle_is_taken() -> None:
    """Half of a strip of 30×300 pixels is wider than 4:3 in any case: left is its full height and 40 columns."""
    image, mask = position_image(30, 300)
    for seed in range(10):
        crop = crop_of(TrainingTransform(64)(image, mask, seed)[1], columns=300)
        assert (crop.top, crop.left, crop.height, crop.width) == (0, 130, 30, 40)


def test_masks_take_the_pixel_at_the_centre_as_pillow_does() -> None:
    """Counted from the corner, as torchvision's own rule does, a mask would lie half a pixel beside its image."""
    image, mask = position_image(30, 30)
    for seed in range(5):
        labels = TrainingTransform(64)(image, mask, seed)[1]
        crop = crop_of(labels, columns=30)
        cut = mask[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width].numpy().astype(np.int32)
        expected = np.array(Image.fromarray(cut).resize((64, 64), Image.Resampling.NEAREST))
        assert np.array_equal(labels.flip(-1) if crop.flipped else labels, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_ids_are_never_interpolated_and_ignored_pixels_stay(dtype: torch.dtype) -> None:
    mask = torch.zeros(60, 80, dtype=dtype)
    mask[20:40, 20:60], mask[25:35, 30:50] = 255, 100
    for seed in range(20):
        labels = TrainingTransform(32)(torch.zeros(3, 60, 80, dtype=torch.uint8), mask, seed)[1]
        assert labels.dtype == dtype
        assert labels.unique().tolist() == [0, 100, 255]


def test_the_reference_crop_by_hand() -> None:
    """8×4 becomes 4×2: of columns and rows the nearest to each centre are 1, 3, 5, 7; the middle keeps 3 and 5."""
    labels = torch.arange(32).reshape(4, 8)
    grey = (labels * 8).to(torch.uint8).expand(3, 4, 8)
    image, truth = CentreCrop(2)(grey, labels)
    assert truth.tolist() == [[8 + 3, 8 + 5], [24 + 3, 24 + 5]]
    assert truth.dtype == torch.int64
    assert image.shape == (3, 2, 2)
    # Halving with antialiasing weighs four columns 1, 3, 3, 1: around columns 2 and 3 that is their mean, 2.5. The four
    # rows are cut off by the border and weigh 3, 3, 1, so that the upper ones mean (3·0 + 3·1 + 1·2)/7 = 5/7.
    assert abs(int(image[0, 0, 0]) - 8 * (8 * 5 / 7 + 2.5)) <= 1
    assert abs(int(image[0, 0, 1]) - 8 * (8 * 5 / 7 + 4.5)) <= 1


def test_the_scale_of_the_reference_crop_leaves_nothing_out() -> None:
    labels = torch.arange(32).reshape(4, 8)
    grey = (labels * 8).to(torch.uint8).expand(3, 4, 8)
    image, truth = ShortSide(2)(grey, labels)
    assert truth.tolist() == [[8 + column for column in (1, 3, 5, 7)], [24 + column for column in (1, 3, 5, 7)]]
    cut, middle = CentreCrop(2)(grey, labels)
    assert torch.equal(image[:, :, 1:3], cut)
    assert torch.equal(truth[:, 1:3], middle)


def test_upright_images_are_cut_above_and_below_and_ignored_pixels_stay() -> None:
    labels = torch.full((6, 2), 255)
    labels[2:4] = 3
    _, truth = CentreCrop(2)(torch.zeros(3, 6, 2, dtype=torch.uint8), labels)
    assert truth.tolist() == [[3, 3], [3, 3]]
    _, truth = CentreCrop(4)(torch.zeros(3, 6, 2, dtype=torch.uint8), labels)
    assert truth.unique().tolist() == [3]
    assert truth.shape == (4, 4)
