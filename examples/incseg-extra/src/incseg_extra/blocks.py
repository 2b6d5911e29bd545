"""A dataset without files: red, green and blue blocks on grey noise, drawn when they are asked for."""

from pathlib import Path

import torch
from torch import Tensor

from incseg.datasets import Source, Split, dataset

CLASSES = ("background", "red", "green", "blue")
SIZE = 64


class Blocks(Split):
    """Images with one block of every class; the same index always gives the same image."""

    def __init__(self, count: int, first_seed: int) -> None:
        self.ids = [f"{first_seed + index:05d}" for index in range(count)]

    def image(self, index: int) -> Tensor:
        """(3, H, W) uint8."""
        mask, generator = self._draw(index)
        image = torch.randint(96, 160, (3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
        for channel in range(3):
            image[channel][mask == channel + 1] = 255
        return image

    def mask(self, index: int) -> Tensor:
        """(H, W) int64 class ids."""
        return self._draw(index)[0]

    def _draw(self, index: int) -> tuple[Tensor, torch.Generator]:
        generator = torch.Generator().manual_seed(int(self.ids[index]))
        mask = torch.zeros(SIZE, SIZE, dtype=torch.int64)
        for class_id in range(1, len(CLASSES)):
            top, left = torch.randint(0, SIZE // 2, (2,), generator=generator).tolist()
            mask[top : top + SIZE // 3, left : left + SIZE // 3] = class_id
        return mask, generator


@dataset("blocks", "coloured blocks, drawn on demand: an example", tasks=("2-1", "1-1"))
def open_blocks(root: Path | None) -> Source:  # noqa: ARG001 - it has no files
    """64 images to learn from, 16 to be scored on."""
    return Source("blocks", CLASSES, train=Blocks(64, first_seed=0), val=Blocks(16, first_seed=10_000))
