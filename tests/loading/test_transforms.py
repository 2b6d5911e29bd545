import torch

from incseg.loading.transforms import CentreCrop


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


def test_upright_images_are_cut_above_and_below_and_ignored_pixels_stay() -> None:
    labels = torch.full((6, 2), 255)
    labels[2:4] = 3
    _, truth = CentreCrop(2)(torch.zeros(3, 6, 2, dtype=torch.uint8), labels)
    assert truth.tolist() == [[3, 3], [3, 3]]
    _, truth = CentreCrop(4)(torch.zeros(3, 6, 2, dtype=torch.uint8), labels)
    assert truth.unique().tolist() == [3]
    assert truth.shape == (4, 4)
