"""Transforms of an image together with its labels: augmentation for training, the reference code's crop for scoring."""

import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as resizing

from incseg.sizes import Size, resize_nearest

USUAL_SHARE = 0.75  # of an image in a training crop: mostly between a half and all of it


class RandomCrop(v2.RandomResizedCrop):  # type: ignore[misc]  # torchvision has no types
    """torchvision's, but masks take the pixel at the centre, as in Pillow: its own rule shifts them by half a pixel."""

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Images as torchvision does."""
        if not isinstance(inpt, tv_tensors.Mask):
            return super().transform(inpt, params)
        top, left, height, width = (params[name] for name in ("top", "left", "height", "width"))
        cut = inpt.as_subclass(Tensor)[..., top : top + height, left : left + width]
        return tv_tensors.Mask(resize_nearest(cut, (self.size[0], self.size[1])))


class TrainingTransform:
    """A random crop, resized to a square, and a random horizontal flip: the augmentation of MiB and UCD.

    The crop's area is drawn from 0.5 to 2 times the image's, its aspect ratio from 3:4 to 4:3; after ten draws that do
    not fit into the image a centre crop is taken. Images are interpolated, masks take the nearest pixel.
    """

    def __init__(self, crop_size: int):
        self.transform = v2.Compose(
            [
                RandomCrop(crop_size, scale=(0.5, 2.0), ratio=(3 / 4, 4 / 3), antialias=True),
                v2.RandomHorizontalFlip(),
            ]
        )

    def __call__(self, image: Tensor, mask: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """(3, H, W) and (H, W) → (3, S, S) and (S, S) with S = ``crop_size``; the seed alone decides the draw."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            cropped, labels = self.transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
        return cropped.as_subclass(Tensor), labels.as_subclass(Tensor)


def side_in_crops(size: Size, crop_size: int) -> float:
    """The longer side that a whole image would have at the scale at which training crops show it.

    >>> round(side_in_crops((375, 500), crop_size=512))
    683
    """
    height, width = size
    return crop_size * max(size) / math.sqrt(USUAL_SHARE * height * width)


class CentreCrop:
    """Resizes the short side to ``size`` and crops the centre square: what MiB, PLOP and UCD score.

    Works on Pillow images, as they do, so that exactly the same pixels are scored: images are interpolated with
    antialiasing, labels take the nearest pixel.
    """

    def __init__(self, size: int):
        self.size = size

    def __call__(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(3, H, W) uint8 and (H, W) int64 → (3, S, S) and (S, S) with S = ``size``."""
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        truth = Image.fromarray(labels.numpy().astype(np.uint8))
        pixels = torch.from_numpy(np.array(self._resize_and_crop(picture, InterpolationMode.BILINEAR))).permute(2, 0, 1)
        return pixels, torch.from_numpy(np.array(self._resize_and_crop(truth, InterpolationMode.NEAREST))).long()

    def _resize_and_crop(self, picture: Image.Image, interpolation: InterpolationMode) -> Image.Image:
        resized = resizing.resize(picture, self.size, interpolation)
        cut: Image.Image = resizing.center_crop(resized, self.size)
        return cut
