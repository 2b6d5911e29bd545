"""Augmentation of an image together with its mask."""

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2


class TrainingTransform:
    """A random crop of random scale and shape, resized to a square, and a random flip: MiB's and UCD's augmentation.

    The crop covers 0.5 to 2 times the image's area where that fits (draws that do not fit are retried, then a centred
    crop is taken) with sides between 3:4 and 4:3. Images are interpolated, masks are not.
    """

    def __init__(self, crop_size: int):
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(crop_size, scale=(0.5, 2.0), ratio=(3 / 4, 4 / 3), antialias=True),
                v2.RandomHorizontalFlip(),
            ]
        )

    def __call__(self, image: Tensor, mask: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """(3, H, W) and (H, W) → the same, both of ``crop_size``; the seed alone decides the draw."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            cropped, labels = self.transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
        return cropped.as_subclass(Tensor), labels.as_subclass(Tensor)
