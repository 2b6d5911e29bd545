"""Transforms of an image together with its labels: augmentation for training, the reference code's crop for scoring."""

import math
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as resizing

from incseg.sizes import Size, resize_nearest

AREA, RATIO, FLIPPED, ATTEMPTS = (0.5, 2.0), (3 / 4, 4 / 3), 0.5, 10
LOG_RATIO = torch.tensor(RATIO).log().tolist()  # in float32, as torchvision has it
USUAL_SHARE = 0.75  # of an image in a training crop: mostly between a half and all of it


class Crop(NamedTuple):
    """Which part of an image a training crop shows, in whole pixels, and whether mirrored."""

    top: int
    left: int
    height: int
    width: int
    flipped: bool


def draw_crop(size: Size, seed: int) -> Crop:
    """The crop of an image that a seed stands for; nothing else decides it.

    The numbers are those that torchvision's ``RandomResizedCrop`` and ``RandomHorizontalFlip`` draw after
    ``torch.manual_seed(seed)``, but from a generator of their own.
    """
    generator, number = torch.Generator().manual_seed(seed), torch.empty(1)
    height, width = size
    for _ in range(ATTEMPTS):
        area = height * width * number.uniform_(*AREA, generator=generator).item()
        number.uniform_(*LOG_RATIO, generator=generator)
        if area >= (height + 0.5) * (width + 0.5):  # two thirds of all draws: they fit in no shape
            continue
        ratio = number.exp_().item()
        high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < wide <= width and 0 < high <= height:
            top, left = (
                int(torch.randint(room + 1, (1,), generator=generator)) for room in (height - high, width - wide)
            )
            break
    else:  # the middle, no longer than 4:3
        high, wide = (min(side, round(other * RATIO[1])) for side, other in ((height, width), (width, height)))
        top, left = (height - high) // 2, (width - wide) // 2
    return Crop(top, left, high, wide, number.uniform_(generator=generator).item() < FLIPPED)


class TrainingTransform:
    """A random crop, resized to a square, and a random horizontal flip: the augmentation of MiB and UCD.

    The crop's area is drawn from 0.5 to 2 times the image's, its aspect ratio from 3:4 to 4:3; after ten draws that do
    not fit into the image a centre crop is taken. Images are interpolated, masks take the pixel at the centre, as in
    Pillow: torchvision's own rule shifts them by half a pixel.
    """

    def __init__(self, crop_size: int):
        self.crop_size = crop_size

    def __call__(self, image: Tensor, mask: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """(3, H, W) and (H, W) → (3, S, S) and (S, S) with S = ``crop_size``; the seed alone decides the draw."""
        size = (self.crop_size, self.crop_size)
        top, left, height, width, flipped = draw_crop((image.shape[-2], image.shape[-1]), seed)
        pixels: Tensor = v2.functional.resized_crop_image(image, top, left, height, width, list(size), antialias=True)
        labels = resize_nearest(mask[top : top + height, left : left + width], size)
        return (pixels.flip(-1), labels.flip(-1)) if flipped else (pixels, labels)


def relabelled(mask: Tensor, table: Tensor) -> Tensor:
    """(H, W) ids → (H, W) uint8 channels, by a table (256,) of them."""
    return table.to(torch.uint8).index_select(0, mask.flatten().int()).view(mask.shape)


def side_in_crops(size: Size, crop_size: int) -> float:
    """The longer side that a whole image would have at the scale at which training crops show it.

    >>> round(side_in_crops((375, 500), crop_size=512))
    683
    """
    height, width = size
    return crop_size * max(size) / math.sqrt(USUAL_SHARE * height * width)


class ShortSide:
    """Resizes the short side to ``size``: the scale at which MiB, PLOP and UCD score.

    Works on Pillow images, as they do, so that exactly the same pixels are scored: images are interpolated with
    antialiasing, labels take the nearest pixel.
    """

    def __init__(self, size: int):
        self.size = size

    def __call__(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(3, H, W) uint8 and (H, W) integers → (3, H', W') and (H', W') int64 with ``size`` the smaller of H', W'."""
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        truth = Image.fromarray(labels.numpy().astype(np.uint8))
        pixels = torch.from_numpy(np.array(self._resized(picture, InterpolationMode.BILINEAR))).permute(2, 0, 1)
        return pixels, torch.from_numpy(np.array(self._resized(truth, InterpolationMode.NEAREST))).long()

    def _resized(self, picture: Image.Image, interpolation: InterpolationMode) -> Image.Image:
        resized: Image.Image = resizing.resize(picture, self.size, interpolation)
        return resized


class CentreCrop(ShortSide):
    """Cuts the centre square out as well, S × S with S = ``size``: what MiB, PLOP and UCD score."""

    def _resized(self, picture: Image.Image, interpolation: InterpolationMode) -> Image.Image:
        cut: Image.Image = resizing.center_crop(super()._resized(picture, interpolation), self.size)
        return cut
