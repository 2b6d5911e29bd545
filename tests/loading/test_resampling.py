"""Crops cut on a device, against the CPU's own resizing and against the transform of the loader."""

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from incseg.datasets import Split
from incseg.loading import TrainingTransform
from incseg.loading.decoded import Measured
from incseg.loading.resampling import BatchCutter, Cut, ResizingTable, resizing_weights
from incseg.loading.transforms import draw_crop

CPU = torch.device("cpu")


class RandomSplit(Split):
    """Noise: every wrong weight shows."""

    def __init__(self, sizes: list[tuple[int, int]]):
        self.ids = [f"{height}x{width}" for height, width in sizes]
        generator = torch.Generator().manual_seed(1)
        self.images = [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
        self.masks = [torch.randint(0, 256, size, generator=generator, dtype=torch.uint8) for size in sizes]

    def image(self, index: int) -> Tensor:
        return self.images[index]

    def mask(self, index: int) -> Tensor:
        return self.masks[index]


@pytest.mark.parametrize("size", [32, 96])
def test_lengths_are_resized_to_the_bit_as_pytorch_does(size: int) -> None:
    lengths = [1, 2, 3, 7, size - 1, size, size + 1, 2 * size, 5 * size + 3, *range(20, 20 * size, 61)]
    for length in lengths:
        row = torch.randint(0, 256, (1, 1, 1, length), dtype=torch.uint8)
        first, weights, bits = resizing_weights(length, size)
        taps = torch.from_numpy(first)[:, None] + torch.arange(weights.shape[1])
        total = (row[0, 0, 0, taps.clamp(max=length - 1)].long() * torch.from_numpy(weights)).sum(1)
        expected = F.interpolate(row, size=(1, size), mode="bilinear", antialias=True)[0, 0, 0]
        assert torch.equal((total + 2 ** (bits - 1)) >> bits, expected.long()), length


SIZES = [(64, 64), (37, 90), (90, 37), (150, 200), (300, 40), (5, 7), (33, 31), (20, 160)]


def test_a_batch_of_crops_is_that_of_the_loader_to_the_bit() -> None:
    """Enlarged and reduced, flipped or not, each with a table of its own."""
    split, size = RandomSplit(SIZES * 3), 64
    decoded = Measured.of(split, range(len(split))).decoded(CPU)
    tables = torch.randint(0, 256, (3, 256))
    cuts, expected = [], []
    for index in range(len(split)):
        offset, height, width = decoded.layout.place(index)
        crop = draw_crop((height, width), seed=index)
        start = offset + crop.top * width + crop.left
        cuts.append(Cut(start, width, crop.height, crop.width, int(crop.flipped), index % 3, index))
        image, mask = TrainingTransform(size)(split.image(index), split.mask(index), seed=index)
        expected.append((image, tables[index % 3][mask.long()]))
    assert 0 < sum(cut.flipped for cut in cuts) < len(cuts)
    batch = BatchCutter(decoded, size)(torch.tensor(cuts), tables)
    images, labels = zip(*expected, strict=True)
    assert torch.equal(batch.images, torch.stack(images))
    assert torch.equal(batch.labels, torch.stack(labels))
    assert batch.labels.dtype == torch.int64
    assert batch.replayed is not None
    assert batch.replayed.tolist() == list(range(len(split)))
    assert batch.images.is_contiguous()


def test_weights_that_were_rounded_up_never_exceed_white() -> None:
    """A byte that overflows would turn white into black."""
    table = ResizingTable(8 * 32, 32, CPU)
    most = table.weights.long().sum(-1) * 255 + table.half[:, None]
    assert (most[1:] >> table.bits[1:, None]).max() == 255


def test_a_batch_needs_nothing_from_the_device_and_has_fixed_shapes() -> None:
    """Tensors without values: whatever waited for one of them, as a CUDA graph cannot, would fail."""
    split = RandomSplit(SIZES)
    cutter = BatchCutter(Measured.of(split, range(len(split))).decoded(CPU), 64)
    with FakeTensorMode(allow_non_fake_inputs=True):
        batch = cutter(torch.empty(5, len(Cut._fields), dtype=torch.int64), torch.empty(2, 256, dtype=torch.int64))
    assert batch.images.shape == (5, 3, 64, 64)
    assert batch.labels.shape == (5, 64, 64)
