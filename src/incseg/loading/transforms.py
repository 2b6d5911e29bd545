"""Changes of an image together with its labels: augmentation in training, the reference's crop in scoring."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as resizing


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


class CentreCrop:
    """The square in the middle, after the short side was resized to it: what MiB, PLOP and UCD score.

    Done on Pillow images as there, so that the very same pixels are scored: images are interpolated with antialiasing,
    labels take the nearest pixel.
    """

    def __init__(self, size: int):
        self.size = size

    def __call__(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(3, H, W) uint8 and (H, W) int64 → the same, both of ``size``."""
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        truth = Image.fromarray(labels.numpy().astype(np.uint8))
        pixels = torch.from_numpy(np.array(self._cut(picture, InterpolationMode.BILINEAR))).permute(2, 0, 1)
        return pixels, torch.from_numpy(np.array(self._cut(truth, InterpolationMode.NEAREST))).long()

    def _cut(self, picture: Image.Image, interpolation: InterpolationMode) -> Image.Image:
        resized = resizing.resize(picture, self.size, interpolation)
        cut: Image.Image = resizing.center_crop(resized, self.size)
        return cut
